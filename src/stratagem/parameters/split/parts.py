"""What one server holds, pieces of leaves and the slots that go with them, and its part of an update."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.extend.core import ClosedJaxpr, Var, jaxpr_as_fun

from stratagem.errors import StrategyError
from stratagem.parameters.split.jaxprs import Atom, Equations
from stratagem.parameters.split.rows import aligned, evaluate_rows, input_states


class _Portion:
    """A whole array, or its rows from `start` to `stop`."""

    start: int
    stop: int | None

    @property
    def rows(self) -> range | None:
        """The rows; `None` for the whole array."""
        return None if self.stop is None else range(self.start, self.stop)

    def taken_from(self, value: Any) -> Any:
        """These rows of the whole array's value, or of its gradient."""
        return value if self.stop is None else value[self.start : self.stop]


@dataclass(frozen=True)
class Piece(_Portion):
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


@dataclass(frozen=True)
class KeptSlot(_Portion):
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


class Computation:
    """What is needed of an update for some outputs, for all rows or for some rows of a leaf; traceable.

    Args:
        equations: The update.
        inputs: What the outputs may be computed from, beside the update's constants.
        outputs: What is computed.
        rows: The rows; `None` for all.
        with_rows: The inputs that have a leaf's rows.
        are_cut: For each output whether it has the rows; none has by default.
    """

    def __init__(
        self,
        equations: Equations,
        inputs: Sequence[Var],
        outputs: Sequence[Atom],
        rows: range | None = None,
        with_rows: Container[Var] = (),
        are_cut: Sequence[bool] | None = None,
    ) -> None:
        self._jaxpr, self._positions = equations.needed(inputs, outputs)
        self._constants = list(equations.constants.values())
        self._rows = rows
        self._states = input_states(self._jaxpr, with_rows)
        self._axes = [0 if is_cut else None for is_cut in are_cut or [False] * len(outputs)]

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs, from the values of the inputs."""
        everything = [*inputs, *self._constants]
        values = [everything[position] for position in self._positions]
        rows = self._rows
        if rows is None:
            return list(jaxpr_as_fun(ClosedJaxpr(self._jaxpr, ()))(*values))
        results = evaluate_rows(self._jaxpr, (), values, self._states, rows)
        return [aligned(*result, axis, rows) for result, axis in zip(results, self._axes, strict=True)]


@dataclass(frozen=True)
class Group:
    """Some pieces of a part that are computed together.

    Attributes:
        pieces: Their places among the part's pieces.
        slots: The places, among the part's slots, of those that are read.
        results: The places of those that are computed.
        compute: The new values of the pieces and then of the results, from the pieces, their gradients, the slots, the
            step and what leaves share.
    """

    pieces: Sequence[int]
    slots: Sequence[int]
    results: Sequence[int]
    compute: Computation


@dataclass(frozen=True)
class Part:
    """What one server keeps, and how it updates it.

    Attributes:
        pieces: The leaves, or rows of leaves, that the server holds.
        slots: The slots that it keeps, in the order of `update`'s values: first those that all servers keep.
    """

    pieces: tuple[Piece, ...]
    slots: tuple[KeptSlot, ...]
    _num_commons: int = field(repr=False)
    _groups: Sequence[Group] = field(repr=False)
    _partials: Sequence[Computation] = field(repr=False)

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
        if len(commons) != self._num_commons:
            raise StrategyError(
                f"leaves share {self._num_commons} value(s) and {len(commons)} were given; give what Plan.combine or "
                "Plan.commons returns"
            )
        new_leaves, new_slots = list(leaves), list(slots)
        for group in self._groups:
            results = group.compute(
                [
                    *(leaves[place] for place in group.pieces),
                    *(gradients[place] for place in group.pieces),
                    *(slots[place] for place in group.slots),
                    step,
                    *commons,
                ]
            )
            for place, value in zip(group.pieces, results, strict=False):
                new_leaves[place] = value
            for place, value in zip(group.results, results[len(group.pieces) :], strict=True):
                new_slots[place] = value
        return new_leaves, new_slots

    def partials(self, gradients: Sequence[Any]) -> list[Any]:
        """What these gradients contribute to what leaves share, piece by piece; traceable.

        Args:
            gradients: Gradients of the pieces.
        """
        _check_number("gradients", gradients, len(self.pieces))
        pairs = zip(self._partials, gradients, strict=True)
        return [value for compute, gradient in pairs for value in compute([gradient])]


def _check_number(what: str, values: Sequence[Any], expected: int) -> None:
    if len(values) != expected:
        raise StrategyError(
            f"this part takes {expected} {what} and was given {len(values)}; give one for each, in order"
        )
