"""What a server holds: pieces of leaves, and the slots that go with them."""

from dataclasses import dataclass
from typing import Any

from stratagem.errors import StrategyError


@dataclass(frozen=True)
class Piece:
    """A leaf, or some of its rows.

    Attributes:
        leaf: The leaf's index.
        start: The first row; 0 for the whole leaf.
        stop: The row after the last; `None` for the whole leaf.
    """

    leaf: int
    start: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        if self.stop is None and self.start != 0:
            raise StrategyError(
                f"a piece without a last row is a whole leaf and starts at 0, not at {self.start}"
            )
        if self.stop is not None and not 0 <= self.start < self.stop:
            raise StrategyError(
                f"a piece has rows start < stop, both counted from 0; got {self.start} to {self.stop}"
            )

    @property
    def rows(self) -> range | None:
        """The rows; `None` for the whole leaf."""
        return None if self.stop is None else range(self.start, self.stop)

    def taken_from(self, value: Any) -> Any:
        """This piece of the whole leaf's value, or of its gradient."""
        return value if self.stop is None else value[self.start : self.stop]


@dataclass(frozen=True)
class KeptSlot:
    """A slot, or some of its rows, as one server keeps it.

    Attributes:
        slot: The slot's index.
        piece: Which of the server's pieces it goes with, by position; `None` if all servers keep it.
        start: The first row.
        stop: The row after the last; `None` for the whole slot.
    """

    slot: int
    piece: int | None
    start: int = 0
    stop: int | None = None

    def taken_from(self, value: Any) -> Any:
        """What the server keeps of the whole slot's value."""
        return value if self.stop is None else value[self.start : self.stop]
