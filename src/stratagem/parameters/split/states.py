"""How a value lies to the rows of the leaf that it belongs to."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Free:
    """It does not depend on the leaf's rows: every part of the leaf may compute all of it."""


@dataclass(frozen=True)
class Rows:
    """It has one slice along `axis` for each row of the leaf, and depends on no other row."""

    axis: int


@dataclass(frozen=True)
class Reduced:
    """It is a reduction over all rows: those of the parts, put together with `operation`, give it.

    Anything but the commons may not use it; `reason` names the reduction, for the message that says so.
    """

    operation: str
    reason: str


@dataclass(frozen=True)
class Mixed:
    """It depends on all rows in some other way; `reason` names the operation."""

    reason: str


State: TypeAlias = Free | Rows | Reduced | Mixed
FREE = Free()
