"""One server's part of an update."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratagem.errors import StrategyError
from stratagem.parameters.split.pieces import KeptSlot, Piece


@dataclass(frozen=True)
class Part:
    """What one server keeps, and how it updates it.

    Attributes:
        pieces: The leaves, or rows of leaves, that the server holds.
        slots: The slots that it keeps, in the order of `update`'s values: first those that all servers keep.
        num_partials: For each piece, how many partials it has.
    """

    pieces: tuple[Piece, ...]
    slots: tuple[KeptSlot, ...]
    num_partials: tuple[int, ...]
    _update: Callable[..., tuple[list[Any], list[Any]]] = field(repr=False)
    _partials: Callable[..., list[Any]] = field(repr=False)

    def update(
        self,
        leaves: Sequence[Any],
        slots: Sequence[Any],
        gradients: Sequence[Any],
        commons: Sequence[Any],
        step: Any,
    ) -> tuple[list[Any], list[Any]]:
        """The server's leaves and slots after an update; traceable.

        Args:
            leaves: Values of the pieces.
            slots: Values of the kept slots.
            gradients: Gradients of the pieces.
            commons: What `Plan.combine` or `Plan.commons` gave; empty if leaves share nothing.
            step: The number of updates before this one.
        """
        _check_number("pieces", leaves, len(self.pieces))
        _check_number("slots", slots, len(self.slots))
        _check_number("gradients", gradients, len(self.pieces))
        return self._update(list(leaves), list(slots), list(gradients), list(commons), step)

    def partials(self, gradients: Sequence[Any]) -> list[Any]:
        """What these gradients contribute to what leaves share, piece by piece; traceable.

        Args:
            gradients: Gradients of the pieces.
        """
        _check_number("gradients", gradients, len(self.pieces))
        return self._partials(list(gradients))


def _check_number(what: str, values: Sequence[Any], expected: int) -> None:
    if len(values) != expected:
        raise StrategyError(
            f"this part takes {expected} {what} and was given {len(values)}; give one for each, in order"
        )
