"""What a worker says with every message of an operation: where it stands, and what it is doing."""

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

from stratagem.errors import ProtocolError
from stratagem.runtime.wire import Fields

_DIGEST_BYTES = 16
_TYPES = [int, int, str, bytes, bool, bool, bool]


@dataclass(frozen=True)
class Operation:
    """One kind of operation on certain arrays, which every worker must mean alike.

    Attributes:
        name: `all_reduce`, `all_gather`, `broadcast` or `barrier`.
        lines: What it is done to, in words: compared only by digest until they are found to differ.
    """

    name: str
    lines: tuple[str, ...] = ()
    digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        words = "\n".join((self.name, *self.lines)).encode()
        object.__setattr__(self, "digest", hashlib.blake2b(words, digest_size=_DIGEST_BYTES).digest())


class Ticket(NamedTuple):
    """A worker's place in one swap of messages.

    Attributes:
        sequence: How many operations it has begun, this one included.
        turn: How many swaps it has begun, this one included: an operation is one or several.
        name: The operation's name.
        digest: The operation's digest.
        is_empty: Whether the worker adds nothing.
        is_done: Whether its data have ended.
        has_more: Whether its tensors come in a further message, once the other has said that it is there.
    """

    sequence: int
    turn: int
    name: str
    digest: bytes
    is_empty: bool = False
    is_done: bool = False
    has_more: bool = False

    @classmethod
    def from_fields(cls, fields: Fields) -> "Ticket":
        """The ticket that came with a message.

        Raises:
            ProtocolError: There is none.
        """
        values = fields.get("ticket")
        if not isinstance(values, list) or [type(value) for value in values] != _TYPES:
            raise ProtocolError(f"a message without a worker's ticket: {values!r:.200}")
        return cls(*values)

    def to_fields(self) -> Fields:
        """The same in plain values."""
        return {"ticket": self}

    @property
    def place(self) -> str:
        """Where the worker stands, in words."""
        return f"operation {self.sequence} ({self.name})"
