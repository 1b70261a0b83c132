"""How an update is cut: who keeps which slots, which leaves may be cut by rows, what leaves share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Var

from stratagem.errors import StrategyError
from stratagem.parameters.split.evaluation import aligned, evaluate, evaluate_rows
from stratagem.parameters.split.jaxprs import Atom, Equations, shape_of
from stratagem.parameters.split.part import Part
from stratagem.parameters.split.pieces import KeptSlot, Piece
from stratagem.parameters.split.states import FREE, Rows
from stratagem.parameters.split.tracing import FlatUpdate

_COMBINATIONS: dict[str, Any] = {
    "add": jnp.add,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "and": jnp.bitwise_and,
    "or": jnp.bitwise_or,
}


@dataclass(frozen=True)
class Partial:
    """A small value of one leaf that what leaves share is computed from.

    Attributes:
        var: Where it is in the update.
        operation: How those of the leaf's pieces are put together; `None` if the leaf must be whole.
    """

    var: Var
    operation: str | None


@dataclass(frozen=True)
class Plan:
    """An analysed update.

    Attributes:
        names: The leaves' names.
        owner_of_slot: For each slot the leaf that it belongs to; `None` if every server keeps it, and updates
            it alike.
        whole_because: For each leaf why it cannot be cut along axis 0; `None` if it can.
        slot_follows_rows: For each slot whether it is cut with its leaf; else each piece keeps a copy.
        couplings: What leaves share, in words; empty if nothing.
        inseparable: Why only one server can do the update; `None` if any number can.
    """

    names: tuple[str, ...]
    owner_of_slot: tuple[int | None, ...]
    whole_because: tuple[str | None, ...]
    slot_follows_rows: tuple[bool, ...]
    couplings: tuple[str, ...]
    inseparable: str | None
    _flat: FlatUpdate = field(repr=False)
    _commons: tuple[Var, ...] = field(repr=False)
    _partials: tuple[tuple[Partial, ...], ...] = field(repr=False)

    @property
    def rows(self) -> tuple[bool, ...]:
        """For each leaf whether it may be cut along axis 0."""
        return tuple(reason is None for reason in self.whole_because)

    @property
    def num_commons(self) -> int:
        """How many values leaves share; 0: no partials are needed, and commons are empty."""
        return len(self._commons)

    def part(self, pieces: Sequence[Piece]) -> Part:
        """The part of the update of a server that holds these pieces.

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
            for slot in self._slots_of(piece.leaf)
        ]
        kept = (*shared, *owned)
        groups = self._groups(pieces, kept)

        def update(
            leaves: list[Any], slots: list[Any], gradients: list[Any], commons: list[Any], step: Any
        ) -> tuple[list[Any], list[Any]]:
            self._check_commons(commons)
            new_leaves, new_slots = list(leaves), list(slots)
            for group in groups:
                group.run(leaves, slots, gradients, commons, step, new_leaves, new_slots)
            return new_leaves, new_slots

        measures = [
            _Measure(self._flat, piece, [partial.var for partial in self._partials[piece.leaf]])
            for piece in pieces
        ]

        def partials(gradients: list[Any]) -> list[Any]:
            results = []
            for measure, gradient in zip(measures, gradients, strict=True):
                results += measure.run(gradient)
            return results

        numbers = tuple(len(self._partials[piece.leaf]) for piece in pieces)
        return Part(pieces, kept, numbers, update, partials)

    def combine(self, contributions: Sequence[tuple[Sequence[Piece], Sequence[Any]]]) -> list[Any]:
        """What leaves share, from the partials of all servers; traceable.

        Rows are put together in their order, whatever the order of servers: the same bits every time.

        Args:
            contributions: For each server its pieces, and the partials that its part gave.

        Raises:
            StrategyError: The pieces are not all leaves, each row once.
        """
        found: list[list[tuple[Piece, list[Any]]]] = [[] for _ in self.names]
        for pieces, values in contributions:
            ahead = list(values)
            for piece in pieces:
                own, ahead = (
                    ahead[: len(self._partials[piece.leaf])],
                    ahead[len(self._partials[piece.leaf]) :],
                )
                found[piece.leaf].append((self._checked(piece), own))
            if ahead:
                raise StrategyError(
                    f"{len(ahead)} partial(s) belong to none of the pieces; give both of one part"
                )
        values = []
        for leaf, shares in enumerate(found):
            shares.sort(key=lambda share: share[0].start)
            self._check_complete(leaf, [piece for piece, _ in shares])
            for place, partial in enumerate(self._partials[leaf]):
                values.append(_combined(partial, [own[place] for _, own in shares]))
        return self._shared(values)

    def commons(self, gradients: Sequence[Any]) -> list[Any]:
        """What leaves share, from all gradients, whole; traceable."""
        if len(gradients) != len(self.names):
            raise StrategyError(
                f"there are {len(self.names)} leaves and {len(gradients)} gradients; give all of them"
            )
        values = []
        for leaf, gradient in enumerate(gradients):
            values += _Measure(
                self._flat, Piece(leaf), [partial.var for partial in self._partials[leaf]]
            ).run(gradient)
        return self._shared(values)

    @cached_property
    def _separate(self) -> Equations:
        """The update with what leaves share given: nothing in it belongs to two leaves."""
        return self._flat.equations.without(frozenset(self._commons))

    def _shared(self, values: Sequence[Any]) -> list[Any]:
        partials = [partial.var for of_leaf in self._partials for partial in of_leaf]
        equations = self._flat.equations.without(frozenset(partials))
        jaxpr, positions = equations.needed(partials, self._commons)
        everything = [*values, *equations.constants.values()]
        return evaluate(jaxpr, [everything[position] for position in positions])

    def _slots_of(self, leaf: int) -> list[int]:
        return [slot for slot, owner in enumerate(self.owner_of_slot) if owner == leaf]

    def _groups(self, pieces: Sequence[Piece], kept: Sequence[KeptSlot]) -> "list[_Group]":
        """What is computed together: all whole leaves and shared slots; and each piece of a cut leaf by itself."""
        # The same leaf twice, by mistake or by design, gets two values and two computations.
        first: dict[int, int] = {}
        for position, piece in enumerate(pieces):
            if piece.stop is None:
                first.setdefault(piece.leaf, position)
        together = set(first.values())
        groups = [together, *({position} for position in range(len(pieces)) if position not in together)]
        return [
            _Group(
                self,
                {pieces[position].leaf: position for position in sorted(group)},
                {
                    entry.slot: place
                    for place, entry in enumerate(kept)
                    if entry.piece in group or (entry.piece is None and group is together)
                },
                {
                    entry.slot: place
                    for place, entry in enumerate(kept)
                    if entry.piece is None or entry.piece in group
                },
                None if group is together else pieces[next(iter(group))].rows,
            )
            for group in groups
        ]

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

    def _check_commons(self, commons: Sequence[Any]) -> None:
        if len(commons) != len(self._commons):
            raise StrategyError(
                f"leaves share {len(self._commons)} value(s) and {len(commons)} were given; give what Plan.combine or "
                "Plan.commons returns"
            )

    def _check_complete(self, leaf: int, pieces: Sequence[Piece]) -> None:
        if not self._partials[leaf]:
            return
        shape = shape_of(self._flat.leaves[leaf])
        ends = [piece.stop if piece.stop is not None else (shape[0] if shape else 0) for piece in pieces]
        starts = [piece.start for piece in pieces]
        whole = shape[0] if shape else 0
        if starts != [0, *ends[:-1]] or ends[-1:] != [whole]:
            raise StrategyError(
                f"the partials of {self.names[leaf]!r} are of rows {list(zip(starts, ends, strict=True))}; those of all "
                f"{whole} rows are needed, each once"
            )


class _Group:
    """Some pieces of a part that are computed by one jaxpr."""

    def __init__(
        self,
        plan: Plan,
        leaves: dict[int, int],
        results: dict[int, int],
        slots: dict[int, int],
        rows: range | None,
    ) -> None:
        flat = plan._flat
        self._leaves, self._slots, self._results, self._rows = leaves, slots, results, rows
        self._constants = list(flat.equations.constants.values())
        inputs = [
            *(flat.leaves[leaf] for leaf in leaves),
            *(flat.gradients[leaf] for leaf in leaves),
            *(flat.slots[slot] for slot in slots),
            flat.step,
            *plan._commons,
        ]
        outputs: list[Atom] = [
            *(flat.new_leaves[leaf] for leaf in leaves),
            *(flat.new_slots[slot] for slot in results),
        ]
        self._jaxpr, self._positions = plan._separate.needed(inputs, outputs)
        with_rows = {var for leaf in leaves for var in (flat.leaves[leaf], flat.gradients[leaf])}
        with_rows |= {flat.slots[slot] for slot in slots if plan.slot_follows_rows[slot]}
        self._states = [Rows(0) if var in with_rows else FREE for var in self._jaxpr.invars]
        self._cut = [True] * len(leaves) + [plan.slot_follows_rows[slot] for slot in results]

    def run(
        self,
        leaves: list[Any],
        slots: list[Any],
        gradients: list[Any],
        commons: list[Any],
        step: Any,
        new_leaves: list[Any],
        new_slots: list[Any],
    ) -> None:
        """Writes what this group computes into the new leaves and slots."""
        everything = [
            *(leaves[place] for place in self._leaves.values()),
            *(gradients[place] for place in self._leaves.values()),
            *(slots[place] for place in self._slots.values()),
            step,
            *commons,
            *self._constants,
        ]
        values = [everything[position] for position in self._positions]
        if self._rows is None:
            results = evaluate(self._jaxpr, values)
        else:
            pairs = evaluate_rows(self._jaxpr, (), values, self._states, self._rows)
            results = [
                aligned(value, state, 0 if cut else None, self._rows)
                for (value, state), cut in zip(pairs, self._cut, strict=True)
            ]
        for place, value in zip(self._leaves.values(), results, strict=False):
            new_leaves[place] = value
        for place, value in zip(self._results.values(), results[len(self._leaves) :], strict=True):
            new_slots[place] = value


class _Measure:
    """The partials of one piece, from its gradient."""

    def __init__(self, flat: FlatUpdate, piece: Piece, partials: Sequence[Var]) -> None:
        self._jaxpr, self._positions = flat.equations.needed([flat.gradients[piece.leaf]], partials)
        self._rows = piece.rows
        self._constants = list(flat.equations.constants.values())
        self._states = [Rows(0) if var is flat.gradients[piece.leaf] else FREE for var in self._jaxpr.invars]

    def run(self, gradient: Any) -> list[Any]:
        """The partials of this gradient."""
        everything = [gradient, *self._constants]
        values = [everything[position] for position in self._positions]
        if self._rows is None:
            return evaluate(self._jaxpr, values)
        return [value for value, _ in evaluate_rows(self._jaxpr, (), values, self._states, self._rows)]


def _combined(partial: Partial, values: Sequence[Any]) -> Any:
    if len(values) == 1 or partial.operation is None:
        return values[0]
    return reduce(_COMBINATIONS[partial.operation], values)
