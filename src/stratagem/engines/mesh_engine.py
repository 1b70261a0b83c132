"""Synchronous steps of several processes, each one compiled program over the devices of all, in which XLA sums.

All processes have to run the same program: one that ran another would wait for ever. So they choose by the form of their
parts of the batch, of which they tell each other while earlier steps are still under way:

- Even: all parts have the same form. One program computes, sums and updates. Inside it each worker's part is computed by
  itself: batch statistics are those of a worker, and each has seeds of its own.
- Uneven: shares that differ by a row, or a worker that has none. Each computes on its own devices, and one program over
  all devices sums and updates.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from stratagem.devices.placing import gathered, local_copy, put
from stratagem.engines.contributions import Contribute, contributor
from stratagem.engines.engine import Step
from stratagem.engines.forms import MetricForms, all_alike, doings, form_of, part_form
from stratagem.engines.global_mesh import GlobalMesh
from stratagem.engines.group_workers import GroupWorkers
from stratagem.engines.mesh_programs import MeshPrograms
from stratagem.engines.pieces import optimizer_in_pieces
from stratagem.engines.replicas import Replicas
from stratagem.engines.steps_under_way import StepsUnderWay
from stratagem.waist import Metrics, Trainable, TrainState

_NOTHING = np.zeros(0, np.uint8)


class MeshEngine:
    """Variables on every device of every worker, and a step that is one program over all of them.

    Args:
        replicas: The devices of this worker.
        workers: The workers.
        under_way: The steps that have begun and are not over.
        shards_state: Whether each device keeps and updates its part of the optimizer's state only.
    """

    is_elsewhere = False

    def __init__(
        self,
        replicas: Replicas,
        workers: GroupWorkers,
        under_way: StepsUnderWay,
        shards_state: bool = False,
    ) -> None:
        self.replicas = replicas
        self._workers = workers
        self._under_way = under_way
        self._packs = sends_each_array_by_itself(replicas)
        self._mesh = GlobalMesh(replicas)
        self._shards = self._mesh.mesh if shards_state else None

    def lay_out(self, state: TrainState) -> TrainState:
        """A copy of everything on every device, of the optimizer's state a part, if that is wanted.

        What is a worker's own is on its own devices.
        """
        whole = jax.tree.map(lambda _: self._mesh.whole, state)
        places = whole if self._shards is None else optimizer_in_pieces(state, self._shards)
        return lay_over(state, places, self._workers)

    def build(self, trainable: Trainable) -> Step:
        """The step, which takes over the memory of the state that it is given."""
        forms = MetricForms(self._workers)
        programs = MeshPrograms(trainable, self._mesh, self._packs, self._shards)
        even = _Even(programs, forms)
        uneven = _Uneven(programs, contributor(trainable, self.replicas, self._workers), self.replicas)

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            if all_alike(doings(self._workers, part_form(batch))):
                joined = self._mesh.join(batch)
                return self._under_way.begin(even.compiled(state, joined), state, joined)
            prepared = uneven.prepared(state, batch)
            self._workers.gather(_NOTHING)  # nobody is to wait inside XLA for another's compiler
            return self._under_way.begin(prepared, state, batch)

        return step


def lay_over(state: TrainState, places: TrainState, workers: GroupWorkers) -> TrainState:
    """Put each array of a state where it belongs on the devices of all workers, who train it together."""
    laid_out: TrainState = jax.tree.map(_laid_over, state, places)
    if state.recipe.workers is workers:
        return laid_out
    return replace(laid_out, recipe=replace(state.recipe, workers=workers))


def _laid_over(leaf: Any, place: NamedSharding) -> jax.Array:
    is_there = isinstance(leaf, jax.Array) and leaf.sharding == place
    return leaf if is_there else put(local_copy(leaf), place)


def sends_each_array_by_itself(replicas: Replicas) -> bool:
    """Whether XLA's sums between these devices take a round of messages for each array: gloo's do.

    Then what is summed is best packed into one. On accelerators XLA joins arrays as it likes.
    """
    return str(replicas.devices[0].platform) == "cpu"


class _Even:
    """The step where all workers' parts of a batch have the same form.

    Args:
        programs: The compiled programs of the model.
        forms: What the workers know of each other's metrics.
    """

    def __init__(self, programs: MeshPrograms, forms: MetricForms) -> None:
        self._programs = programs
        self._forms = forms
        self._compiled: dict[Any, Step] = {}

    def compiled(self, state: TrainState, batch: Any) -> Step:
        """The step for such a batch; all workers wait here for the one whose compiler takes the longest."""
        form = form_of(batch)
        if form not in self._compiled:
            numbers = self._programs.mesh.numbers()
            lowered = self._programs.even.lower(state, batch, numbers)
            program = lowered.compile()
            self._compiled[form] = lambda state, batch: program(state, batch, numbers)
            _, metrics = lowered.out_info
            self._forms.check({name: list(metric.shape) for name, metric in metrics.items()})
        return self._compiled[form]


class _Uneven:
    """The step where workers' parts of a batch differ: each computes by itself, and one program sums and updates.

    Args:
        programs: The compiled programs of the model.
        contribute: Computes what this worker contributes.
        replicas: The devices of this worker.
    """

    def __init__(self, programs: MeshPrograms, contribute: Contribute, replicas: Replicas) -> None:
        self._programs = programs
        self._mesh = programs.mesh
        self._contribute = contribute
        self._lifted = jax.jit(
            lambda arrays: [jnp.asarray(each)[None] for each in arrays], out_shardings=replicas.whole
        )
        self._update: Callable[..., tuple[TrainState, Metrics]] | None = None

    def prepared(self, state: TrainState, batch: Any) -> Step:
        """The step for such a batch: what this worker has computed of it, and how it becomes an update."""
        arrays, own, names = self._contribute(self._mesh.local(gathered(self._programs.seen(state))), batch)
        parts = self._mesh.stack(self._lifted(arrays))
        own = self._mesh.widen(own)
        if self._update is None:
            self._update = self._programs.uneven.lower(state, parts, own, names=names).compile()
        update = self._update
        return lambda state, _: update(state, parts, own)
