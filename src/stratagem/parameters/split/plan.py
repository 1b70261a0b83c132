"""How an update is cut: who keeps which slots, which leaves may be cut by rows, what leaves share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import islice
from typing import Any

from jax.extend.core import Var

from stratagem.errors import StrategyError
from stratagem.parameters.split.jaxprs import Equations, shape_of
from stratagem.parameters.split.parts import Computation, Group, KeptSlot, Part, Piece
from stratagem.parameters.split.rules import Combination
from stratagem.parameters.split.tracing import FlatUpdate


@dataclass(frozen=True)
class Partial:
    """A small value of one leaf that what leaves share is computed from.

    Attributes:
        var: Where it is in the update.
        combine: Puts those of two pieces of the leaf together; `None` if the leaf must be whole.
    """

    var: Var
    combine: Combination | None


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
            for slot, owner in enumerate(self.owner_of_slot)
            if owner == piece.leaf
        ]
        partials = [self._partials_of(piece) for piece in pieces]
        slots = (*shared, *owned)
        return Part(pieces, slots, len(self._commons), self._groups(pieces, slots), partials)

    def combine(self, contributions: Sequence[tuple[Sequence[Piece], Sequence[Any]]]) -> list[Any]:
        """What leaves share, from the partials of all servers; traceable.

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
        """What leaves share, from all gradients, whole; traceable."""
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
        """The update with what leaves share given: nothing in it belongs to two leaves."""
        return self._flat.equations.without(frozenset(self._commons))

    def _shared(self, values: Sequence[Any]) -> list[Any]:
        partials = [partial.var for of_leaf in self._partials for partial in of_leaf]
        return Computation(self._flat.equations.without(frozenset(partials)), partials, self._commons)(values)

    def _partials_of(self, piece: Piece) -> Computation:
        gradient = self._flat.gradients[piece.leaf]
        partials = [partial.var for partial in self._partials[piece.leaf]]
        return Computation(self._flat.equations, [gradient], partials, piece.rows, (gradient,))

    def _groups(self, pieces: Sequence[Piece], kept: Sequence[KeptSlot]) -> list[Group]:
        """What is computed together: all whole leaves and shared slots; and each piece of a cut leaf by itself."""
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
    ) -> Group:
        """One piece by itself, or all that are computed together, with the slots that all servers keep."""
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
        return Group(own, used, results, compute)

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
