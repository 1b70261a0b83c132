"""A model over parameter servers, as every worker plans it: who holds what, who computes what, and back again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

import jax
import numpy as np

from stratagem.devices import log_placement, part_name
from stratagem.parameters.partition import Leaf, Partitioner, partition
from stratagem.parameters.protocol import ArrayConfig, JobConfig, StackConfig, StoreConfig
from stratagem.parameters.row_updates import PlannedRows, RowUpdate, row_spec
from stratagem.parameters.split import KeptSlot, Part, Piece, Plan, Update, analyse
from stratagem.runtime.programs import Program, export_program
from stratagem.runtime.programs.summary import TensorSpec
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.row_store import SIZES
from stratagem.tables.stacks import Stack
from stratagem.waist import Recipe, TrainState

Pieces = list[list[Array]]
"""For each server, arrays."""


@dataclass(frozen=True, kw_only=True)
class JobOptions(JobConfig):
    """The settings that all models of a job share, and how their models are laid out."""

    platforms: tuple[str, ...]  # for each server, the platform that its programs are for
    partitioner: Partitioner | None  # which server holds which variables


@dataclass(frozen=True)
class _Entry:
    """One array on one server."""

    tensor: int  # which leaf or slot it is, or is of: leaves are counted first, then slots
    portion: Piece | KeptSlot
    array: ArrayConfig


class ModelPlan:
    """One model over the servers.

    Args:
        state: An untrained state, with its initial values.
    """

    def __init__(self, name: str, state: TrainState, names: Sequence[str], options: JobOptions) -> None:
        self.options = options
        self._num_params = len(state.flat_params)
        self._num_opt_state = len(state.flat_opt_state)
        self._num_averages = len(state.flat_ema or [])
        self._kinds = tuple(state.kinds)
        tables = state.recipe.tables
        self._rows = (
            list(zip(tables.stacks, tables.updates, strict=True)) if isinstance(tables, PlannedRows) else []
        )
        values = self._values(state)
        count = len(values) - self._num_opt_state - self._num_averages
        tensors = [
            Leaf(each, value.shape, value.dtype)
            for each, value in zip(_names(state, names, count), values, strict=True)
        ]
        self.plan: Plan = analyse(
            _whole_update(state, self._num_params, self._num_opt_state),
            values[:count],
            values[count:],
            names=[leaf.name for leaf in tensors[:count]],
            servers=len(options.servers),
        )
        pieces = partition(
            tensors[:count], options.partitioner, len(options.servers), self.plan.whole_because
        )
        # For each server, its arrays and how it updates them.
        self.parts: list[Part] = [self.plan.part(own) for own in pieces]
        self._entries = _entries(self.parts, tensors, count)
        homes = _homes(self._entries, len(tensors))
        self._leaf_homes, self._slot_homes = homes[:count], homes[count:]
        self.programs: dict[str, Program] = {}  # the programs that servers run, by hash
        self.configs = self._configs(name, tensors)  # for each server, the description of its part

    # From a state to servers, and back.

    def _values(self, state: TrainState) -> list[Any]:
        """Return all leaves, then all slots; `None` for averages that a state does not have."""
        averages = [None] * self._num_averages if state.flat_ema is None else state.flat_ema
        return [*state.flat_params, *self.shared(state.flat_state), *state.flat_opt_state, *averages]

    def initial(self, state: TrainState) -> Pieces:
        """Return the values that each server begins with."""
        return [list(own.values()) for own in self.scatter_state(state)]

    def scatter_state(self, state: TrainState) -> list[dict[int, Array]]:
        """Return the values of each server, by their places in `StoreConfig.arrays`; values that are `None` are left out."""
        values = [None if value is None else np.asarray(value) for value in self._values(state)]
        return [
            {
                place: entry.portion.taken_from(value)
                for place, entry in enumerate(own)
                if (value := values[entry.tensor]) is not None
            }
            for own in self._entries
        ]

    def scatter(self, values: Sequence[Any]) -> Pieces:
        """Return the pieces of each server, from one value for each leaf."""
        return [
            [
                values[piece.leaf] if piece.stop is None else piece.taken_from(values[piece.leaf])
                for piece in part.pieces
            ]
            for part in self.parts
        ]

    def join(
        self,
        arrays: Sequence[Sequence[Any]],
        concatenate: Callable[[list[Any]], Any] = np.concatenate,
        slots: bool = False,
    ) -> list[Any]:
        """Return the leaves, from the pieces of all servers; or the slots, from all values of all servers."""
        return [
            arrays[home[0][0]][home[0][1]]
            if len(home) == 1
            else concatenate([arrays[server][place] for server, place in home])
            for home in (self._slot_homes if slots else self._leaf_homes)
        ]

    def params_and_state(
        self,
        arrays: Sequence[Sequence[Any]],
        others: Sequence[Any],
        concatenate: Callable[[list[Any]], Any] = np.concatenate,
    ) -> tuple[list[Any], list[Any]]:
        """Return parameters and non-trained state, from the pieces of all servers and the state that is not there."""
        leaves = self.join(arrays, concatenate)
        if len(leaves) == self._num_params:
            return leaves, list(others)
        shared = iter(leaves[self._num_params :])
        return leaves[: self._num_params], [
            next(shared) if kind == "mean" else each for kind, each in zip(self._kinds, others, strict=True)
        ]

    def shared(self, others: Sequence[Any]) -> list[Any]:
        """Return the entries for state that lives on the servers, of one for each piece of non-trained state."""
        return [each for kind, each in zip(self._kinds, others, strict=True) if kind == "mean"]

    def join_state(
        self, arrays: Sequence[Sequence[Array]], others: Sequence[Any], step: int, recipe: Recipe
    ) -> TrainState:
        """Return a state, of all values of all servers and the pieces of non-trained state that are not there."""
        params, others = self.params_and_state(arrays, others)
        slots = self.join(arrays, slots=True)
        averages = None if recipe.ema is None else slots[self._num_opt_state :]
        return TrainState(params, slots[: self._num_opt_state], others, averages, np.int32(step), recipe)

    def combine(self, partials: Sequence[Sequence[Any]]) -> list[Any]:
        """Compute what leaves share, from the partials of each server; traceable."""
        return self.plan.combine([(part.pieces, own) for part, own in zip(self.parts, partials, strict=True)])

    # Descriptions for servers.

    def _configs(self, name: str, tensors: Sequence[Leaf]) -> list[StoreConfig]:
        options, configs = self.options, []
        shared: dict[str, Any] = {each.name: getattr(options, each.name) for each in fields(JobConfig)}
        arrays = [[entry.array for entry in own] for own in self._entries]
        leaves = [own[: len(part.pieces)] for own, part in zip(arrays, self.parts, strict=True)]
        leaf_specs = [[each.spec for each in own] for own in leaves]
        commons = [
            TensorSpec(tuple(each.shape), str(each.dtype))
            for each in jax.eval_shape(self.plan.commons, tensors[: len(self._leaf_homes)])
        ]
        averages = options.rule.averages_pushes and self.plan.num_commons > 0
        combine = ""
        if averages:
            pairs = zip(self.parts, leaf_specs, strict=True)
            shares = [jax.eval_shape(part.partials, specs) for part, specs in pairs]
            combine = self._export(0, self.combine, shares)
        homes = zip(tensors, [*self._leaf_homes, *self._slot_homes], strict=True)
        manifest = [
            [tensor.name, [[server, arrays[server][place].name] for server, place in home]]
            for tensor, home in homes
        ]
        participants = tuple(
            server for server, part in enumerate(self.parts) if part.pieces or server == 0 or self._rows
        )
        for server, (part, specs) in enumerate(zip(self.parts, leaf_specs, strict=True)):
            for each in leaves[server]:
                log_placement(
                    each.name.removeprefix("params/"), "Variable", f"{options.servers[server]}/cpu:0"
                )
            slots = arrays[server][len(specs) :]
            update = partials = ""
            if arrays[server]:
                slot_specs = [each.spec for each in slots]
                step = TensorSpec((), "int32")
                update = self._export(server, part.update, specs, slot_specs, specs, commons, step)
            if averages and specs:
                partials = self._export(server, part.partials, specs)
            tables = [self._stack_config(server, *pair) for pair in self._rows]
            configs.append(
                StoreConfig(
                    **shared,
                    name=name,
                    server=server,
                    participants=participants,
                    leaves=tuple(leaves[server]),
                    slots=tuple(slots),
                    commons=tuple(commons),
                    update=update,
                    partials=partials,
                    combine=combine if server == 0 else "",
                    tensors=manifest if server == 0 else None,
                    tables=tuple(tables),
                )
            )
        return configs

    def _stack_config(self, server: int, stack: Stack, update: RowUpdate) -> StackConfig:
        table, scalars = stack.tables[0], update.scalars
        first, updates = [], []
        for size in SIZES:
            values = TensorSpec((size, table.dim), table.dtype)
            slots = [TensorSpec((size, *shape), dtype) for shape, dtype in update.slots]
            first.append(self._export(server, update.first, TensorSpec((size, 2), "uint32")))
            step = TensorSpec((), "int32")
            updates.append(self._export(server, update.update, values, *slots, *scalars, values, step))
        plain = tuple((each.shape, str(each.dtype), each.tobytes()) for each in scalars)
        names = tuple(each.name for each in stack.tables)
        return StackConfig(names, row_spec(stack, update), plain, tuple(first), tuple(updates))

    def _export(self, server: int, function: Callable[..., Any], *arguments: Any) -> str:
        program = export_program(function, *arguments, platform=self.options.platforms[server])
        self.programs[program.content_hash] = program
        return program.content_hash


def _whole_update(state: TrainState, num_params: int, num_opt_state: int) -> Update:
    """Return the whole update, as `analyse` takes it: state that is not trained is moved by differences."""

    def update(
        leaves: list[Any], slots: list[Any], gradients: list[Any], step: Any
    ) -> tuple[list[Any], list[Any]]:
        before = TrainState(
            leaves[:num_params], slots[:num_opt_state], [], slots[num_opt_state:], step, state.recipe
        )
        after = before.updated(gradients[:num_params], [])
        pairs = zip(leaves[num_params:], gradients[num_params:], strict=True)
        others = [old + difference for old, difference in pairs]
        return [*after.flat_params, *others], [*after.flat_opt_state, *(after.flat_ema or [])]

    return update


def _names(state: TrainState, names: Sequence[str], num_leaves: int) -> list[str]:
    """Return the names of all leaves, then of all slots."""
    tree = state.recipe.opt_state_tree
    placeholder = jax.tree.unflatten(tree, range(tree.num_leaves))
    return [
        *(f"params/{name}" for name in names),
        *(f"state/{number}" for number in range(num_leaves - len(names))),
        *(
            f"opt_state/{jax.tree_util.keystr(path)}"
            for path, _ in jax.tree_util.tree_leaves_with_path(placeholder)
        ),
        *(f"ema/{name}" for name in (names if state.flat_ema is not None else ())),
    ]


def _entries(parts: Sequence[Part], tensors: Sequence[Leaf], num_leaves: int) -> list[list[_Entry]]:
    """Return the arrays of each server: pieces of leaves, then slots."""
    pieces = sorted(
        (piece for part in parts for piece in part.pieces), key=lambda piece: (piece.leaf, piece.start)
    )
    shard_of = {
        piece: shard
        for _, own in groupby(pieces, lambda piece: piece.leaf)
        for shard, piece in enumerate(own)
    }

    def entry(number: int, portion: Piece | KeptSlot, piece: Piece | None) -> _Entry:
        name, shape = tensors[number].name, tuple(tensors[number].shape)
        if piece is not None and piece.stop is not None:
            name = part_name(name, shard_of[piece])
        if portion.rows is not None:
            shape = (len(portion.rows), *shape[1:])
        return _Entry(number, portion, ArrayConfig(name, TensorSpec(shape, str(tensors[number].dtype))))

    return [
        [
            *(entry(piece.leaf, piece, piece) for piece in part.pieces),
            *(
                entry(num_leaves + kept.slot, kept, None if kept.piece is None else part.pieces[kept.piece])
                for kept in part.slots
            ),
        ]
        for part in parts
    ]


def _homes(entries: Sequence[Sequence[_Entry]], count: int) -> list[list[tuple[int, int]]]:
    """Return for each leaf, then each slot, where its rows are, in order: servers, and places among their entries."""
    homes: list[list[tuple[int, int, int]]] = [[] for _ in range(count)]
    for server, own in enumerate(entries):
        for place, entry in enumerate(own):
            if entry.portion.stop is not None or not homes[entry.tensor]:  # of copies, one is enough
                homes[entry.tensor].append((entry.portion.start, server, place))
    return [[(server, place) for _, server, place in sorted(home)] for home in homes]
