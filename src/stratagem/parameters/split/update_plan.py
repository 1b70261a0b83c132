"""The cut of an update: which server keeps which slots, which leaves may be cut by rows, what leaves share; each part."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import islice
from typing import Any

from jax.extend.core import ClosedJaxpr, Var, jaxpr_as_fun

from stratagem.errors import StrategyError
from stratagem.parameters.split.jaxprs import Atom, Equations, shape_of
from stratagem.parameters.split.operations import Combination
from stratagem.parameters.split.row_analysis import align_rows, evaluate_rows, input_states
from stratagem.parameters.split.tracing import FlatUpdate


class _Portion:
    """A whole array, or its rows from `start` to `stop`."""

    start: int
    stop: int | None

    @property
    def rows(self) -> range | None:
        """The rows; `None` for the whole array."""
        return None if self.stop is None else range(self.start, self.stop)

    def taken_from(self, value: Any) -> Any:
        """Return these rows of the whole array's value, or of its gradient."""
        return value if self.stop is None else value[self.start : self.stop]


@dataclass(frozen=True)
class Piece(_Portion):
    """A leaf, or some of its rows."""

    leaf: int
    start: int = 0  # the first row; 0 for the whole leaf
    stop: int | None = None  # the row after the last; `None` for the whole leaf

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
    """A slot, or some of its rows, as one server keeps it."""

    slot: int
    piece: int | None  # which of the server's pieces it goes with, by position; `None` if all servers keep it
    start: int = 0  # the first row
    stop: int | None = None  # the row after the last; `None` for the whole slot


class Computation:
    """The part of an update that some outputs need, for all rows or for some rows of a leaf; traceable.

    Args:
        inputs: The values that the outputs may be computed from, beside the update's constants.
        outputs: The values that are computed.
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
        """Compute the outputs from the values of the inputs."""
        everything = [*inputs, *self._constants]
        values = [everything[position] for position in self._positions]
        rows = self._rows
        if rows is None:
            return list(jaxpr_as_fun(ClosedJaxpr(self._jaxpr, ()))(*values))
        results = evaluate_rows(self._jaxpr, (), values, self._states, rows)
        return [align_rows(*result, axis, rows) for result, axis in zip(results, self._axes, strict=True)]


@dataclass(frozen=True)
class PieceGroup:
    """Some pieces of a part that are computed together."""

    pieces: Sequence[int]  # their places among the part's pieces
    slots: Sequence[int]  # the places, among the part's slots, of those that are read
    results: Sequence[int]  # the places of those that are computed
    # The new values of the pieces and then of the results, from the pieces, their gradients, the slots, the step and
    # what leaves share.
    compute: Computation


@dataclass(frozen=True)
class Part:
    """One server's part of an update: the arrays that it keeps, and how it updates them."""

    pieces: tuple[Piece, ...]  # the leaves, or rows of leaves, that the server holds
    # The slots that it keeps, in the order of `update`'s values: first those that all servers keep.
    slots: tuple[KeptSlot, ...]
    _num_commons: int = field(repr=False)
    _groups: Sequence[PieceGroup] = field(repr=False)
    _partials: Sequence[Computation] = field(repr=False)

    def update(
        self,
        leaves: Sequence[Any],
        slots: Sequence[Any],
        gradients: Sequence[Any],
        commons: Sequence[Any],
        step: Any,
    ) -> tuple[list[Any], list[Any]]:
        """Compute the server's leaves and slots after an update; `step` updates were made before. Traceable."""
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
        """Compute these gradients' contribution to the commons, piece by piece; traceable."""
        _check_number("gradients", gradients, len(self.pieces))
        pairs = zip(self._partials, gradients, strict=True)
        return [value for compute, gradient in pairs for value in compute([gradient])]


def _check_number(what: str, values: Sequence[Any], expected: int) -> None:
    if len(values) != expected:
        raise StrategyError(
            f"this part takes {expected} {what} and was given {len(values)}; give one for each, in order"
        )


@dataclass(frozen=True)
class Partial:
    """A small value of one leaf from which the commons are computed."""

    var: Var  # where it is in the update
    combine: (
        Combination | None
    )  # puts those of two pieces of the leaf together; `None` if the leaf must be whole


@dataclass(frozen=True)
class Plan:
    """An analysed update."""

    names: tuple[str, ...]  # the leaves' names
    # For each slot the leaf that it belongs to; `None` if every server keeps it, and updates it alike.
    owner_of_slot: tuple[int | None, ...]
    whole_because: tuple[str | None, ...]  # for each leaf why it cannot be cut along axis 0; `None` if it can
    slot_follows_rows: tuple[
        bool, ...
    ]  # for each slot whether it is cut with its leaf; else each piece keeps a copy
    couplings: tuple[str, ...]  # the values that leaves share, in words; empty if there are none
    inseparable: str | None  # why only one server can do the update; `None` if any number can
    _flat: FlatUpdate = field(repr=False)
    _commons: tuple[Var, ...] = field(repr=False)
    _partials: tuple[tuple[Partial, ...], ...] = field(repr=False)

    @property
    def rows(self) -> tuple[bool, ...]:
        """For each leaf whether it may be cut along axis 0."""
        return tuple(reason is None for reason in self.whole_because)

    @property
    def num_commons(self) -> int:
        """The number of values that leaves share; 0: no partials are needed, and commons are empty."""
        return len(self._commons)

    def part(self, pieces: Sequence[Piece]) -> Part:
        """Return the part of a server that holds these pieces.

        Raises:
            StrategyError: A piece is not there, or is cut out of a leaf that must stay whole.
        """
        pieces = tuple(self._checked(piece) for piece in pieces)
        if self.inseparable is not None and [piece.leaf for piece in pieces] != list(range(len(self.names))):
            raise StrategyError(
                f"{self.inseparable} Only one server can hold them: give it all leaves, whole and in order"
            )
        shared = [KeptSlot(slot, None) for slot, owner in enumerate(self.owner_of_slot) if owner is None]
        owned = [
            KeptSlot(slot, position, piece.start, piece.stop)
            if piece.stop is not None and self.slot_follows_rows[slot]
            else KeptSlot(slot, position)
            for position, piece in enumerate(pieces)
            for slot, owner in enumerate(self.owner_of_slot)
            if owner == piece.leaf
        ]
        partials = [self._partials_of(piece) for piece in pieces]
        slots = (*shared, *owned)
        return Part(pieces, slots, len(self._commons), self._groups(pieces, slots), partials)

    def combine(self, contributions: Sequence[tuple[Sequence[Piece], Sequence[Any]]]) -> list[Any]:
        """Compute the values that leaves share, from the partials of all servers; traceable.

        Rows are put together in their order, whatever the order of servers: the same bits every time.

        Args:
            contributions: For each server its pieces, and the partials that its part gave.

        Raises:
            StrategyError: The pieces are not all leaves, each row once.
        """
        shares: list[list[tuple[Piece, list[Any]]]] = [[] for _ in self.names]
        for pieces, values in contributions:
            ahead = iter(values)
            for piece in pieces:
                own = list(islice(ahead, len(self._partials[piece.leaf])))
                shares[piece.leaf].append((self._checked(piece), own))
            if rest := list(ahead):
                raise StrategyError(
                    f"{len(rest)} partial(s) belong to none of the pieces; give both of one part"
                )
        values = []
        for leaf, of_leaf in enumerate(shares):
            of_leaf.sort(key=lambda share: share[0].start)
            self._check_complete(leaf, [piece for piece, _ in of_leaf])
            for place, partial in enumerate(self._partials[leaf]):
                numbers = [own[place] for _, own in of_leaf]
                values.append(reduce(partial.combine, numbers) if partial.combine else numbers[0])
        return self._shared(values)

    def commons(self, gradients: Sequence[Any]) -> list[Any]:
        """Compute the values that leaves share, from all gradients, whole; traceable."""
        if len(gradients) != len(self.names):
            raise StrategyError(
                f"there are {len(self.names)} leaves and {len(gradients)} gradients; give all of them"
            )
        return self._shared(
            [
                value
                for leaf, gradient in enumerate(gradients)
                for value in self._partials_of(Piece(leaf))([gradient])
            ]
        )

    @cached_property
    def _separate(self) -> Equations:
        """The update after the commons are known: nothing in it belongs to two leaves."""
        return self._flat.equations.without(frozenset(self._commons))

    def _shared(self, values: Sequence[Any]) -> list[Any]:
        partials = [partial.var for of_leaf in self._partials for partial in of_leaf]
        return Computation(self._flat.equations.without(frozenset(partials)), partials, self._commons)(values)

    def _partials_of(self, piece: Piece) -> Computation:
        gradient = self._flat.gradients[piece.leaf]
        partials = [partial.var for partial in self._partials[piece.leaf]]
        return Computation(self._flat.equations, [gradient], partials, piece.rows, (gradient,))

    def _groups(self, pieces: Sequence[Piece], kept: Sequence[KeptSlot]) -> list[PieceGroup]:
        """Return what is computed together: all whole leaves and shared slots; and each piece of a cut leaf by itself."""
        # The same leaf twice, by mistake or by design, gets two values and two computations.
        first: dict[int, int] = {}
        for position, piece in enumerate(pieces):
            if piece.stop is None:
                first.setdefault(piece.leaf, position)
        together = set(first.values())
        alone = (position for position in range(len(pieces)) if position not in together)
        return [
            self._group(pieces, kept, sorted(together), None),
            *(self._group(pieces, kept, [position], pieces[position]) for position in alone),
        ]

    def _group(
        self, pieces: Sequence[Piece], kept: Sequence[KeptSlot], own: Sequence[int], piece: Piece | None
    ) -> PieceGroup:
        """Return one piece by itself, or all that are computed together, with the slots that all servers keep."""
        flat, follows = self._flat, self.slot_follows_rows
        needed = {None, *own}
        used = [place for place, slot in enumerate(kept) if slot.piece in needed]
        results = [place for place in used if piece is None or kept[place].piece is not None]
        leaves = [flat.leaves[pieces[place].leaf] for place in own]
        gradients = [flat.gradients[pieces[place].leaf] for place in own]
        slots = [flat.slots[kept[place].slot] for place in used]
        cut_slots = {flat.slots[kept[place].slot] for place in used if follows[kept[place].slot]}
        compute = Computation(
            self._separate,
            [*leaves, *gradients, *slots, flat.step, *self._commons],
            [
                *(flat.new_leaves[pieces[place].leaf] for place in own),
                *(flat.new_slots[kept[place].slot] for place in results),
            ],
            None if piece is None else piece.rows,
            cut_slots.union(leaves, gradients),
            [True] * len(own) + [follows[kept[place].slot] for place in results],
        )
        return PieceGroup(own, used, results, compute)

    def _checked(self, piece: Piece) -> Piece:
        if not 0 <= piece.leaf < len(self.names):
            raise StrategyError(f"there is no leaf {piece.leaf}; leaves are 0 to {len(self.names) - 1}")
        rows = piece.rows
        if rows is None:
            return piece
        name, shape = self.names[piece.leaf], shape_of(self._flat.leaves[piece.leaf])
        if shape and rows == range(shape[0]):
            return Piece(piece.leaf)
        reason = self.whole_because[piece.leaf]
        if reason is not None:
            raise StrategyError(f"{name!r} cannot be cut along axis 0: {reason}; keep it whole on one server")
        if rows.stop > shape[0]:
            raise StrategyError(
                f"{name!r} has {shape[0]} rows; a piece of rows {rows.start} to {rows.stop} is not in it"
            )
        return piece

    def _check_complete(self, leaf: int, pieces: Sequence[Piece]) -> None:
        if not self._partials[leaf]:
            return
        whole = (*shape_of(self._flat.leaves[leaf]), 0)[0]
        starts = [piece.start for piece in pieces]
        ends = [whole if piece.stop is None else piece.stop for piece in pieces]
        if not pieces or [*starts, whole] != [0, *ends]:
            raise StrategyError(
                f"the partials of {self.names[leaf]!r} are of rows {list(zip(starts, ends, strict=True))}; those of all "
                f"{whole} rows are needed, each once"
            )
