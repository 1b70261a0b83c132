"""Synchronous steps of several processes, each one compiled program over the devices of all, in which XLA sums.

All processes have to run the same program: one that ran another would wait for ever. So they choose by the form of their
parts of the batch, of which they tell each other while earlier steps are still under way:

- Even: all parts have the same form. One program computes, sums and updates. Inside it each worker's part is computed by
  itself: batch statistics are those of a worker, and each has seeds of its own.
- Uneven: shares that differ by a row, or a worker that has none. Each computes on its own devices, and one program over
  all devices sums and updates.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from stratagem.strategies.contributions import contribution, nothing, updated, wide
from stratagem.strategies.engines import Step
from stratagem.strategies.forms import MetricForms, all_alike, form_of, part_form
from stratagem.strategies.global_mesh import WORKER_AXIS, GlobalMesh
from stratagem.strategies.group_workers import GroupWorkers
from stratagem.strategies.replicas import Replicas
from stratagem.strategies.rows import count_rows
from stratagem.strategies.steps_under_way import StepsUnderWay
from stratagem.waist import Metrics, Trainable, TrainState

_NOTHING = np.zeros(0, np.uint8)
_EVERYWHERE, _OF_WORKER = PartitionSpec(), PartitionSpec(WORKER_AXIS)


class MeshEngine:
    """Variables on every device of every worker, and a step that is one program over all of them.

    Args:
        replicas: The devices of this worker.
        workers: The workers.
        under_way: The steps that have begun and are not over.
    """

    is_elsewhere = False

    def __init__(self, replicas: Replicas, workers: GroupWorkers, under_way: StepsUnderWay) -> None:
        self.replicas = replicas
        self._workers = workers
        self._under_way = under_way
        self._packs = sends_each_array_by_itself(replicas)
        self._mesh = GlobalMesh(replicas)

    def lay_out(self, state: TrainState) -> TrainState:
        """A copy of everything on every device; what is a worker's own, on the devices of this one."""
        laid_out: TrainState = self._mesh.replicate(state)
        if state.recipe.workers is self._workers:
            return laid_out
        return replace(laid_out, recipe=replace(state.recipe, workers=self._workers))

    def build(self, trainable: Trainable) -> Step:
        """The step, which takes over the memory of the state that it is given."""
        forms = MetricForms(self._workers)
        even = _Even(trainable, self._mesh, self._packs, forms)
        uneven = _Uneven(trainable, self._mesh, self._packs, self.replicas, self._workers.index, forms)

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            if all_alike(self._workers.gather(part_form(batch))):
                joined = self._mesh.join(batch)
                return self._under_way.begin(even.compiled(state, joined), state, joined)
            prepared = uneven.prepared(state, batch)
            self._workers.gather(_NOTHING)  # nobody is to wait inside XLA for another's compiler
            return self._under_way.begin(prepared, state, batch)

        return step


def sends_each_array_by_itself(replicas: Replicas) -> bool:
    """Whether XLA's sums between these devices take a round of messages for each array: gloo's do.

    Then what is summed is best packed into one. On accelerators XLA joins arrays as it likes.
    """
    return str(replicas.devices[0].platform) == "cpu"


class _Even:
    """The step where all workers' parts of a batch have the same form.

    Args:
        trainable: The model.
        mesh: The devices of all.
        packs: Whether what is summed goes through the network in one piece.
        forms: What the workers know of each other's metrics.
    """

    def __init__(self, trainable: Trainable, mesh: GlobalMesh, packs: bool, forms: MetricForms) -> None:
        self._program = even_program(trainable, mesh, packs)
        self._numbers = jax.make_array_from_callback(
            (mesh.workers,), mesh.by_worker, lambda place: np.arange(mesh.workers, dtype=np.int32)[place]
        )
        self._forms = forms
        self._compiled: dict[Any, Step] = {}

    def compiled(self, state: TrainState, batch: Any) -> Step:
        """The step for such a batch; all workers wait here for the one whose compiler takes the longest."""
        form = form_of(batch)
        if form not in self._compiled:
            lowered = self._program.lower(state, batch, self._numbers)
            program = lowered.compile()
            self._compiled[form] = lambda state, batch: program(state, batch, self._numbers)
            _, metrics = lowered.out_info
            self._forms.check({name: list(metric.shape) for name, metric in metrics.items()})
        return self._compiled[form]


def even_program(trainable: Trainable, mesh: GlobalMesh, packs: bool) -> Any:
    """The step as one program: compute worker by worker, sum over all, update everywhere."""

    def sums(state: TrainState, batch: Any, number: jax.Array) -> Any:
        shared, own, metrics = contribution(trainable, state, batch, 1.0, number[0])
        shared, metrics = _summed_over_workers((shared, metrics), packs)
        return shared, own, metrics

    def step(state: TrainState, batch: Any, numbers: jax.Array) -> tuple[TrainState, Metrics]:
        # What the model does not look at stays out of it.
        read = state.flat_opt_state if trainable.reads_optimizer else []
        seen = TrainState(state.flat_params, read, state.flat_state, None, state.step, state.recipe)
        places = jax.tree.map(lambda leaf: _OF_WORKER if np.ndim(leaf) else _EVERYWHERE, batch)
        shared, own, metrics = _by_worker(sums, mesh, (_EVERYWHERE, places, _OF_WORKER))(seen, batch, numbers)
        return updated(trainable, state, shared, float(mesh.workers), own, metrics)

    return jax.jit(step, donate_argnums=0, out_shardings=mesh.whole)


class _Uneven:
    """The step where workers' parts of a batch differ: computed by each on its devices, summed over all.

    Args:
        trainable: The model.
        mesh: The devices of all.
        packs: Whether what is summed goes through the network in one piece.
        replicas: The devices of this worker.
        index: Which worker it is.
        forms: What the workers know of each other's metrics.
    """

    def __init__(
        self,
        trainable: Trainable,
        mesh: GlobalMesh,
        packs: bool,
        replicas: Replicas,
        index: int,
        forms: MetricForms,
    ) -> None:
        self._mesh = mesh
        self._replicas = replicas
        self._forms = forms
        self._compute = computing_program(trainable, replicas, index)
        self._update = uneven_update(trainable, mesh, packs)
        self._updated: Callable[..., tuple[TrainState, Metrics]] | None = None

    def prepared(self, state: TrainState, batch: Any) -> Step:
        """The step for such a batch: what this worker has computed of it, and how it becomes an update."""
        rows = count_rows(batch, of_nothing=0)
        if rows:
            shared, own, metrics = self._compute(self._mesh.local(state), batch, np.float32(rows))
        else:
            shared, own, metrics = nothing(state)
            shared, own = [each[None] for each in shared], self._mesh.local(own)
        shapes = self._forms.agreed(
            {name: list(metric.shape[1:]) for name, metric in metrics.items()} if rows else None
        )
        told = {
            name: metrics[name] if rows else np.zeros((1, *shape), np.float32)
            for name, shape in shapes.items()
        }
        parts = self._mesh.stack(self._replicas.replicate((shared, told, np.full(1, rows, np.float32))))
        own = self._mesh.widen(own)
        if self._updated is None:
            self._updated = self._update.lower(state, parts, own).compile()
        updated = self._updated
        return lambda state, _: updated(state, parts, own)


def computing_program(trainable: Trainable, replicas: Replicas, index: int) -> Any:
    """What one worker computes of a batch of which it has another share than the others."""

    def compute(state: TrainState, batch: Any, rows: Any) -> Any:
        shared, own, metrics = contribution(trainable, state, batch, rows, index)
        return [each[None] for each in shared], own, {name: each[None] for name, each in metrics.items()}

    return jax.jit(compute, out_shardings=replicas.whole)


def uneven_update(trainable: Trainable, mesh: GlobalMesh, packs: bool) -> Any:
    """Sum what all workers have computed, and update everywhere."""

    def sums(parts: Any) -> Any:
        return _summed_over_workers(jax.tree.map(lambda part: part[0], parts), packs)

    def update(state: TrainState, parts: Any, own: Any) -> tuple[TrainState, Metrics]:
        shared, metrics, rows = _by_worker(sums, mesh, (_OF_WORKER,))(parts)
        return updated(trainable, state, shared, rows, own, metrics)

    return jax.jit(update, donate_argnums=0, out_shardings=mesh.whole)


def _by_worker(function: Callable[..., Any], mesh: GlobalMesh, places: tuple[Any, ...]) -> Callable[..., Any]:
    """A function that each worker computes by itself, on all its devices, and whose results are not in parts."""
    return jax.shard_map(
        function,
        mesh=mesh.mesh,
        in_specs=places,
        out_specs=_EVERYWHERE,
        axis_names={WORKER_AXIS},
        check_vma=False,  # state of a worker's own is not the same on all of them
    )


def _summed_over_workers(value: Any, packs: bool) -> Any:
    """The sums over all workers; inside `_by_worker`."""
    leaves, tree = jax.tree.flatten(value)
    leaves = [wide(leaf) for leaf in leaves]
    total = partial(jax.lax.psum, axis_name=WORKER_AXIS)
    return jax.tree.unflatten(tree, _packed(total, leaves) if packs else total(leaves))


def _packed(function: Callable[[jax.Array], jax.Array], arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """What an elementwise function makes of arrays, which goes over those of one type all at once."""
    # Without a barrier XLA would compute the gradients again inside the concatenation, element by element.
    arrays = jax.lax.optimization_barrier(list(arrays))
    places: dict[Any, list[int]] = {}
    for place, array in enumerate(arrays):
        places.setdefault(array.dtype, []).append(place)
    found: list[Any] = [None] * len(arrays)
    for some in places.values():
        pieces = function(jnp.concatenate([arrays[place].reshape(-1) for place in some]))
        ends = np.cumsum([arrays[place].size for place in some])
        for place, piece in zip(some, jnp.split(pieces, ends[:-1]), strict=True):
            found[place] = piece.reshape(arrays[place].shape)
    return found
