"""A model over parameter servers, as every worker plans it: who holds what, who computes what, and back again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.devices import log_placement, part_name
from stratagem.parameters.config import Held, StoreConfig
from stratagem.parameters.partition import Leaf, Partitioner, partition
from stratagem.parameters.rules import Sync, UpdateRule
from stratagem.parameters.split import Part, Piece, Plan, analyse
from stratagem.runtime.programs import Program, export_program
from stratagem.runtime.programs.summary import TensorSpec
from stratagem.runtime.wire.arrays import Array
from stratagem.waist import Recipe, TrainState

Pieces = list[list[Array]]
"""For each server, arrays."""


@dataclass(frozen=True)
class JobOptions:
    """What all models of a job share.

    Attributes:
        servers: The tasks of the parameter servers.
        workers: The tasks of the workers.
        platforms: For each server, the platform that its programs are for.
        rule: How pushes become updates.
        partitioner: Who holds what.
        snapshot_dir: Where cuts are kept.
        snapshot_secs: Seconds from cut to cut.
        rejoin_timeout: Seconds for which a silent task may come back.
    """

    servers: tuple[str, ...]
    workers: tuple[str, ...]
    platforms: tuple[str, ...]
    rule: UpdateRule
    partitioner: Partitioner | None
    snapshot_dir: str | None
    snapshot_secs: float
    rejoin_timeout: float


class ModelPlan:
    """One model over the servers.

    Args:
        name: Names the model within its job.
        state: An untrained state of it: what it is made of, and its initial values.
        names: The parameters' names.
        options: What all models of the job share.

    Attributes:
        configs: What each server has to know.
        programs: What they run, by hash.
    """

    def __init__(self, name: str, state: TrainState, names: Sequence[str], options: JobOptions) -> None:
        self.options = options
        self._num_params = len(state.flat_params)
        self._num_opt_state = len(state.flat_opt_state)
        self._num_averages = len(state.flat_ema or [])
        self._kinds = tuple(state.kinds)
        leaves, slots = self._leaves(state), self._slots(state)
        leaf_names = [f"params/{each}" for each in names]
        leaf_names += [f"state/{number}" for number in range(len(leaves) - len(names))]
        self._slot_names = _slot_names(state, names)
        self.plan: Plan = analyse(
            _whole_update(state, self._num_params, self._num_opt_state),
            leaves,
            slots,
            names=leaf_names,
            servers=len(options.servers),
        )
        named = [Leaf(each, leaf.shape, leaf.dtype) for each, leaf in zip(leaf_names, leaves, strict=True)]
        pieces = partition(named, options.partitioner, len(options.servers), self.plan.whole_because)
        self.parts: list[Part] = [self.plan.part(held) for held in pieces]
        self._homes = _homes(self.parts, len(leaves))
        self._num_leaves = len(leaves)
        self.programs: dict[str, Program] = {}
        self.configs = self._configured(name, named, slots)

    # What is made of a state.

    def _leaves(self, state: TrainState) -> list[Any]:
        return [*state.flat_params, *self.shared(state.flat_state)]

    def _slots(self, state: TrainState) -> list[Any]:
        return [*state.flat_opt_state, *(state.flat_ema or [])]

    def initial(self, state: TrainState) -> Pieces:
        """The values that each server begins with."""
        leaves = [np.asarray(leaf) for leaf in self._leaves(state)]
        slots = [np.asarray(slot) for slot in self._slots(state)]
        return [
            [
                *(piece.taken_from(leaves[piece.leaf]) for piece in part.pieces),
                *(kept.taken_from(slots[kept.slot]) for kept in part.slots),
            ]
            for part in self.parts
        ]

    def scatter(self, values: Sequence[Any]) -> Pieces:
        """For each server its pieces of what there is one of for each leaf."""
        return [
            [
                values[piece.leaf] if piece.stop is None else piece.taken_from(values[piece.leaf])
                for piece in part.pieces
            ]
            for part in self.parts
        ]

    def join(
        self, held: Sequence[Sequence[Any]], concatenate: Callable[[list[Any]], Any] = np.concatenate
    ) -> list[Any]:
        """The leaves, from the pieces of all servers."""
        return _joined(self._homes[: self._num_leaves], held, concatenate)

    def join_slots(self, held: Sequence[Sequence[Array]]) -> list[Any]:
        """The slots, from all values of all servers."""
        return _joined(self._homes[self._num_leaves :], held, np.concatenate)

    def taken(
        self,
        held: Sequence[Sequence[Any]],
        others: Sequence[Any],
        concatenate: Callable[[list[Any]], Any] = np.concatenate,
    ) -> tuple[list[Any], list[Any]]:
        """Parameters and non-trained state, from the pieces of all servers; of the latter, the others stay as they are."""
        leaves = self.join(held, concatenate)
        if len(leaves) == self._num_params:
            return leaves, list(others)
        shared = iter(leaves[self._num_params :])
        return leaves[: self._num_params], [
            next(shared) if kind == "mean" else each for kind, each in zip(self._kinds, others, strict=True)
        ]

    def shared(self, pieces: Sequence[Any]) -> list[Any]:
        """Of what there is one of for each piece of non-trained state, that of those which live on the servers."""
        return [each for kind, each in zip(self._kinds, pieces, strict=True) if kind == "mean"]

    def whole(
        self, held: Sequence[Sequence[Array]], others: Sequence[Any], step: int, recipe: Recipe
    ) -> TrainState:
        """A state from all values of all servers, and the pieces of non-trained state that are not there."""
        params, others = self.taken(held, others)
        opt_state, averages = self.split_slots(self.join_slots(held))
        kept = None if recipe.ema is None else averages
        return TrainState(params, opt_state, others, kept, np.int32(step), recipe)

    def placed(self, state: TrainState) -> list[dict[int, Array]]:
        """For each server the values that there are for it, by their places among what it holds; `None` is none."""
        averages = [None] * self._num_averages if state.flat_ema is None else state.flat_ema
        leaves = [*state.flat_params, *self.shared(state.flat_state)]
        slots = [*state.flat_opt_state, *averages]
        found = []
        for part in self.parts:
            values = [
                *((piece.taken_from, leaves[piece.leaf]) for piece in part.pieces),
                *((kept.taken_from, slots[kept.slot]) for kept in part.slots),
            ]
            found.append(
                {
                    place: taken_from(np.asarray(value))
                    for place, (taken_from, value) in enumerate(values)
                    if value is not None
                }
            )
        return found

    def split_slots(self, slots: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The optimizer's state, and moving averages."""
        return list(slots[: self._num_opt_state]), list(slots[self._num_opt_state :])

    # What servers are told.

    def _configured(self, name: str, leaves: Sequence[Leaf], slots: Sequence[Any]) -> list[StoreConfig]:
        options = self.options
        numbers = _part_numbers(self.parts)
        held = [
            (self._held_leaves(part, leaves, numbers), self._held_slots(part, slots, numbers))
            for part in self.parts
        ]
        participants = tuple(server for server, part in enumerate(self.parts) if part.pieces or server == 0)
        averages = isinstance(options.rule, Sync) and self.plan.num_commons > 0
        commons = _specs(jax.eval_shape(self.plan.commons, [_shape(leaf) for leaf in leaves]))
        combine = self._export(self._combine, self._partial_specs(leaves), server=0) if averages else ""
        for server, (own, _) in enumerate(held):
            for each in own:
                log_placement(
                    each.name.removeprefix("params/"), "Variable", f"{options.servers[server]}/cpu:0"
                )
        return [
            StoreConfig(
                name=name,
                server=server,
                servers=options.servers,
                workers=options.workers,
                participants=participants,
                leaves=own_leaves,
                slots=own_slots,
                commons=commons,
                rule=options.rule,
                update=self._export(
                    self.parts[server].update,
                    [_struct(each.spec) for each in own_leaves],
                    [_struct(each.spec) for each in own_slots],
                    [_struct(each.spec) for each in own_leaves],
                    [_struct(spec) for spec in commons],
                    jax.ShapeDtypeStruct((), jnp.int32),
                    server=server,
                )
                if own_leaves or own_slots
                else "",
                partials=self._export(
                    self.parts[server].partials, [_struct(each.spec) for each in own_leaves], server=server
                )
                if averages and own_leaves
                else "",
                combine=combine if server == 0 else "",
                snapshot_dir=options.snapshot_dir,
                snapshot_secs=options.snapshot_secs,
                rejoin_timeout=options.rejoin_timeout,
                tensors=_tensors(self.parts, held, leaves, self._slot_names) if server == 0 else None,
            )
            for server, (own_leaves, own_slots) in enumerate(held)
        ]

    def _held_leaves(self, part: Part, leaves: Sequence[Leaf], numbers: dict[Piece, int]) -> tuple[Held, ...]:
        found = []
        for piece in part.pieces:
            leaf = leaves[piece.leaf]
            name = leaf.name if piece.stop is None else part_name(leaf.name, numbers[piece])
            found.append(Held(name, _cut_spec(leaf.shape, leaf.dtype, piece.rows)))
        return tuple(found)

    def _held_slots(self, part: Part, slots: Sequence[Any], numbers: dict[Piece, int]) -> tuple[Held, ...]:
        found = []
        for kept in part.slots:
            slot, name = slots[kept.slot], self._slot_names[kept.slot]
            piece = None if kept.piece is None else part.pieces[kept.piece]
            if piece is not None and piece.stop is not None:
                name = part_name(name, numbers[piece])
            rows = None if kept.stop is None else range(kept.start, kept.stop)
            found.append(Held(name, _cut_spec(slot.shape, slot.dtype, rows)))
        return tuple(found)

    def _partial_specs(self, leaves: Sequence[Leaf]) -> list[list[Any]]:
        shapes = self.scatter_shapes(leaves)
        return [jax.eval_shape(part.partials, own) for part, own in zip(self.parts, shapes, strict=True)]

    def scatter_shapes(self, leaves: Sequence[Leaf]) -> list[list[Any]]:
        """The shapes of each server's pieces."""
        return [
            [
                _struct(_cut_spec(leaves[piece.leaf].shape, leaves[piece.leaf].dtype, piece.rows))
                for piece in part.pieces
            ]
            for part in self.parts
        ]

    def _combine(self, partials: list[list[Any]]) -> list[Any]:
        return self.plan.combine([(part.pieces, own) for part, own in zip(self.parts, partials, strict=True)])

    def _export(self, function: Any, *arguments: Any, server: int) -> str:
        program = export_program(function, *arguments, platform=self.options.platforms[server])
        self.programs[program.content_hash] = program
        return program.content_hash


def _whole_update(state: TrainState, num_params: int, num_opt_state: int) -> Any:
    """The update of everything, as `analyse` wants it: state that is not trained is moved by differences."""
    recipe = state.recipe

    def update(
        leaves: list[Any], slots: list[Any], gradients: list[Any], step: Any
    ) -> tuple[list[Any], list[Any]]:
        params, opt_state = recipe.updater.update(
            leaves[:num_params], slots[:num_opt_state], gradients[:num_params]
        )
        averages = slots[num_opt_state:]
        if recipe.ema is not None:
            averages = recipe.ema.update(averages, params, num_updates=step + 1)
        others = [
            old + difference
            for old, difference in zip(leaves[num_params:], gradients[num_params:], strict=True)
        ]
        return [*params, *others], [*opt_state, *averages]

    return update


def _slot_names(state: TrainState, names: Sequence[str]) -> list[str]:
    tree = state.recipe.opt_state_tree
    placeholder = jax.tree.unflatten(tree, range(tree.num_leaves))
    found = [
        f"opt_state/{jax.tree_util.keystr(path)}"
        for path, _ in jax.tree_util.tree_leaves_with_path(placeholder)
    ]
    return [*found, *(f"ema/{name}" for name in (names if state.flat_ema is not None else ()))]


def _part_numbers(parts: Sequence[Part]) -> dict[Piece, int]:
    """For each piece of a cut leaf, which of the leaf's parts it is."""
    cut = sorted(
        (piece for part in parts for piece in part.pieces if piece.stop is not None),
        key=lambda piece: (piece.leaf, piece.start),
    )
    counts: dict[int, int] = {}
    numbers = {}
    for piece in cut:
        numbers[piece] = counts.get(piece.leaf, 0)
        counts[piece.leaf] = numbers[piece] + 1
    return numbers


def _tensors(
    parts: Sequence[Part],
    held: Sequence[tuple[Sequence[Held], Sequence[Held]]],
    leaves: Sequence[Leaf],
    slot_names: Sequence[str],
) -> list[list[Any]]:
    """What a cut's tensors are made of: for each, the servers and keys of its parts in the order of rows."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for server, (part, (own_leaves, own_slots)) in enumerate(zip(parts, held, strict=True)):
        for piece, entry in zip(part.pieces, own_leaves, strict=True):
            found.setdefault(leaves[piece.leaf].name, []).append((piece.start, server, entry.name))
        for kept, entry in zip(part.slots, own_slots, strict=True):
            name = slot_names[kept.slot]
            if kept.stop is not None or name not in found:  # of copies, one is enough
                found.setdefault(name, []).append((kept.start, server, entry.name))
    return [[name, [[server, key] for _, server, key in sorted(pieces)]] for name, pieces in found.items()]


def _homes(parts: Sequence[Part], leaves: int) -> list[list[tuple[int, int]]]:
    """For each leaf and then each slot where its pieces are, in the order of rows: servers, and places among what they hold."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for server, part in enumerate(parts):
        kept = [(piece.leaf, piece.start, piece.stop) for piece in part.pieces]
        kept += [(leaves + slot.slot, slot.start, slot.stop) for slot in part.slots]
        for place, (each, start, stop) in enumerate(kept):
            if stop is not None or each not in found:  # of copies, one is enough
                found.setdefault(each, []).append((start, server, place))
    return [[(server, place) for _, server, place in sorted(found[each])] for each in range(len(found))]


def _joined(
    homes: Sequence[Sequence[tuple[int, int]]],
    held: Sequence[Sequence[Any]],
    concatenate: Callable[[list[Any]], Any],
) -> list[Any]:
    return [
        held[home[0][0]][home[0][1]]
        if len(home) == 1
        else concatenate([held[server][place] for server, place in home])
        for home in homes
    ]


def _cut_spec(shape: tuple[int, ...], dtype: Any, rows: range | None) -> TensorSpec:
    return TensorSpec(tuple(shape) if rows is None else (len(rows), *shape[1:]), str(dtype))


def _struct(spec: TensorSpec) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(spec.shape, np.dtype(spec.dtype))


def _shape(leaf: Leaf) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _specs(shapes: Sequence[Any]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(tuple(each.shape), str(each.dtype)) for each in shapes)
