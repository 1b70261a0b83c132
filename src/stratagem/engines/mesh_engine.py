"""Synchronous steps of several processes, each one compiled program over the devices of all, in which XLA sums.

All processes have to run the same program: one that ran another would wait for ever. So they choose it by the form of their
shares of the batch, which they tell each other while earlier steps are still under way:

- Even: all shares have the same form. One program computes, sums and updates. Inside it each worker's share is computed
  by itself: batch statistics are those of a worker, and each has seeds of its own.
- Uneven: shares that differ by a row, or a worker that has none. Each computes on its own devices, and one program over
  all devices sums and updates.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from stratagem.devices.global_arrays import gather
from stratagem.engines.contributions import (
    Contribute,
    MetricForms,
    all_alike,
    apply_sums,
    apply_totals,
    contribution,
    contributor,
    form_of,
    gather_forms,
    share_form,
    widen_dtype,
)
from stratagem.engines.engine import Engine, Step, gradient_inputs, training_program
from stratagem.engines.group_workers import GroupWorkers
from stratagem.engines.meshes import WORKER_AXIS, GlobalMesh, lay_over, optimizer_in_shards
from stratagem.engines.replicas import Replicas
from stratagem.engines.steps_under_way import StepsUnderWay
from stratagem.waist import Arrays, Metrics, Trainable, TrainState

_NOTHING = np.zeros(0, np.uint8)
_EVERYWHERE, _BY_WORKER = PartitionSpec(), PartitionSpec(WORKER_AXIS)


class MeshEngine(Engine):
    """Variables on every device of every worker, and a step that is one program over all of them.

    Args:
        replicas: The devices of this worker.
        workers: The workers.
        under_way: The steps that have begun and are not over.
        shards_state: Whether each device keeps and updates only its shard of the optimizer's state.
    """

    def __init__(
        self, replicas: Replicas, workers: GroupWorkers, under_way: StepsUnderWay, shards_state: bool = False
    ) -> None:
        super().__init__(replicas)
        self._workers = workers
        self._under_way = under_way
        self._packs = sends_each_array_by_itself(replicas)
        self._mesh = GlobalMesh(replicas)
        self._shards = self._mesh.mesh if shards_state else None

    def lay_out(self, state: TrainState) -> TrainState:
        """Put a state on every device; state of a worker's own is on its own devices."""
        whole = jax.tree.map(lambda _: self._mesh.whole, state)
        shardings = whole if self._shards is None else optimizer_in_shards(state, self._shards)
        return lay_over(state, shardings, self._workers)

    def build(self, trainable: Trainable) -> Step:
        forms = MetricForms(self._workers)
        programs = MeshPrograms(trainable, self._mesh, self._packs, self._shards)
        even = _EvenSteps(programs, forms)
        uneven = _UnevenSteps(programs, contributor(trainable, self.replicas, self._workers), self.replicas)

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            if all_alike(gather_forms(self._workers, share_form(batch))):
                joined = self._mesh.join(batch)
                return self._under_way.begin(even.compile(state, joined), state, joined)
            prepared = uneven.prepare(state, batch)
            self._workers.gather(_NOTHING)  # nobody is to wait inside XLA for another's compiler
            return self._under_way.begin(prepared, state, batch)

        return step


def sends_each_array_by_itself(replicas: Replicas) -> bool:
    """Return whether XLA's sums between these devices take a round of messages for each array, as gloo's do.

    Then arrays are best packed into one before they are summed. On accelerators XLA joins arrays as it likes.
    """
    return str(replicas.devices[0].platform) == "cpu"


class _EvenSteps:
    """Steps where all workers' shares of a batch have the same form."""

    def __init__(self, programs: "MeshPrograms", forms: MetricForms) -> None:
        self._programs = programs
        self._forms = forms
        self._compiled: dict[Any, Step] = {}

    def compile(self, state: TrainState, batch: Any) -> Step:
        """Return the step for such a batch; all workers wait here for the one whose compiler takes the longest."""
        form = form_of(batch)
        if form not in self._compiled:
            numbers = self._programs.mesh.numbers()
            lowered = self._programs.even.lower(state, batch, numbers)
            program = lowered.compile()
            self._compiled[form] = lambda state, batch: program(state, batch, numbers)
            _, metrics = lowered.out_info
            self._forms.check({name: list(metric.shape) for name, metric in metrics.items()})
        return self._compiled[form]


class _UnevenSteps:
    """Steps where workers' shares of a batch differ: each computes by itself, and one program sums and updates."""

    def __init__(self, programs: "MeshPrograms", contribute: Contribute, replicas: Replicas) -> None:
        self._programs = programs
        self._mesh = programs.mesh
        self._contribute = contribute
        self._as_rows = jax.jit(
            lambda arrays: [jnp.asarray(each)[None] for each in arrays], out_shardings=replicas.whole
        )
        self._update: Callable[..., tuple[TrainState, Metrics]] | None = None

    def prepare(self, state: TrainState, batch: Any) -> Step:
        """Compute this worker's contribution, and return the step that sums it with the others' and updates."""
        inputs = self._mesh.local(gather(self._programs.inputs(state)))
        arrays, own, names = self._contribute(inputs, batch)
        parts = self._mesh.stack(self._as_rows(arrays))
        own = self._mesh.widen(own)
        if self._update is None:
            self._update = self._programs.uneven.lower(state, parts, own, names=names).compile()
        update = self._update
        return lambda state, _: update(state, parts, own)


class MeshPrograms:
    """The programs of a model's steps, compiled once for the devices of all workers.

    Args:
        trainable: The model.
        mesh: The devices of all workers.
        packs: Whether arrays are packed into one to be summed.
        shards: The devices that share out the optimizer's state, if they do.

    Attributes:
        even: `even(state, batch, numbers)`: compute worker by worker, sum over all, update everywhere.
        uneven: `uneven(state, parts, own, names=names)`: sum what each worker has contributed, with the names of its
            metrics, and update everywhere.
    """

    def __init__(self, trainable: Trainable, mesh: GlobalMesh, packs: bool, shards: Mesh | None) -> None:
        self.mesh = mesh
        self._trainable = trainable
        self._packs = packs
        self.even = training_program(self._even, mesh.whole, shards)
        self.uneven = training_program(self._uneven, mesh.whole, shards, static_argnames="names")

    def inputs(self, state: TrainState) -> TrainState:
        """Return the part of a state that computing gradients reads."""
        return gradient_inputs(self._trainable, state)

    def _even(self, state: TrainState, batch: Any, numbers: jax.Array) -> tuple[TrainState, Metrics]:
        def sums(inputs: TrainState, batch: Any, number: jax.Array) -> Any:
            shared, own, metrics = contribution(self._trainable, inputs, batch, 1.0, number[0])
            shared, metrics = self._sum((shared, metrics))
            return shared, own, metrics

        specs = jax.tree.map(lambda leaf: _BY_WORKER if np.ndim(leaf) else _EVERYWHERE, batch)
        by_worker = self._worker_by_worker(sums, (_EVERYWHERE, specs, _BY_WORKER))
        shared, own, metrics = by_worker(self.inputs(state), batch, numbers)
        return apply_sums(self._trainable, state, shared, float(self.mesh.workers), own, metrics)

    def _uneven(
        self, state: TrainState, parts: Any, own: Arrays, names: Sequence[str]
    ) -> tuple[TrainState, Metrics]:
        def sums(parts: Any) -> Any:
            return self._sum([part[0] for part in parts])

        totals = self._worker_by_worker(sums, (_BY_WORKER,))(parts)
        return apply_totals(self._trainable, state, totals, own, names)

    def _worker_by_worker(self, function: Callable[..., Any], specs: tuple[Any, ...]) -> Callable[..., Any]:
        """Return a function that each worker computes by itself, on all its devices, with results that are not sharded."""
        return jax.shard_map(
            function,
            mesh=self.mesh.mesh,
            in_specs=specs,
            out_specs=_EVERYWHERE,
            axis_names={WORKER_AXIS},
            check_vma=False,  # state of a worker's own is not the same on all of them
        )

    def _sum(self, value: Any) -> Any:
        """Return the sums over all workers; inside `_worker_by_worker`."""
        leaves, tree = jax.tree.flatten(value)
        leaves = [widen_dtype(leaf) for leaf in leaves]
        total = partial(jax.lax.psum, axis_name=WORKER_AXIS)
        return jax.tree.unflatten(tree, apply_packed(total, leaves) if self._packs else total(leaves))


def apply_packed(function: Callable[[jax.Array], jax.Array], arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Apply an elementwise function to arrays, once for all arrays of a dtype; traceable."""
    # Without a barrier XLA would compute the gradients again inside the concatenation, element by element.
    arrays = jax.lax.optimization_barrier(list(arrays))
    by_dtype: dict[Any, list[int]] = {}
    for number, array in enumerate(arrays):
        by_dtype.setdefault(array.dtype, []).append(number)
    results: list[Any] = [None] * len(arrays)
    for numbers in by_dtype.values():
        flat = function(jnp.concatenate([arrays[number].reshape(-1) for number in numbers]))
        ends = np.cumsum([arrays[number].size for number in numbers])
        for number, result in zip(numbers, jnp.split(flat, ends[:-1]), strict=True):
            results[number] = result.reshape(arrays[number].shape)
    return results
