"""A value that each replica has one of."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PerReplica:
    """The values of this process's replicas, in the order of their devices.

    Example:
        >>> PerReplica((1, 2)).values
        (1, 2)
    """

    values: tuple[Any, ...]
