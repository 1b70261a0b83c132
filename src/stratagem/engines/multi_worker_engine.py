"""How the gradients of several processes become one update: computed here, summed between all, applied here.

Every worker weighs what it sends with its number of rows, so the sums are those over the global batch, however
unevenly its rows are spread; a worker without a row sends zeros, and computes nothing.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.engines.contributions import contribution, nothing, updated, wide
from stratagem.engines.engine import Step
from stratagem.engines.forms import MetricForms
from stratagem.engines.group_workers import GroupWorkers
from stratagem.engines.replicas import Replicas
from stratagem.engines.rows import count_rows
from stratagem.waist import Arrays, Metrics, Trainable, TrainState


class MultiWorkerEngine:
    """Variables on every device of every worker; the group of workers sums gradients.

    Args:
        replicas: The devices of this worker.
        workers: The workers.
    """

    is_elsewhere = False

    def __init__(self, replicas: Replicas, workers: GroupWorkers) -> None:
        self.replicas = replicas
        self._workers = workers

    def lay_out(self, state: TrainState) -> TrainState:
        """A copy of everything on every device of this worker."""
        laid_out: TrainState = self.replicas.replicate(state)
        if state.recipe.workers is self._workers:
            return laid_out
        return replace(laid_out, recipe=replace(state.recipe, workers=self._workers))

    def build(self, trainable: Trainable) -> Step:
        """Compute, sum, update."""
        index = self._workers.index

        def compute(state: TrainState, batch: Any, rows: Any) -> tuple[Arrays, Arrays, Metrics]:
            return contribution(trainable, state, batch, rows, index)

        def update(
            state: TrainState, summands: Sequence[Sequence[Any]], own: Arrays, names: Sequence[str]
        ) -> tuple[TrainState, Metrics]:
            sums = [_total(column) for column in zip(*summands, strict=True)]
            *shared, rows = sums[: -len(names)] if names else sums
            metrics = dict(zip(names, sums[len(shared) + 1 :], strict=True))
            return updated(trainable, state, shared, rows, own, metrics)

        whole = self.replicas.whole
        computed = jax.jit(compute, out_shardings=whole)
        update = jax.jit(update, donate_argnums=0, out_shardings=whole, static_argnames="names")
        forms = MetricForms(self._workers)

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            rows = count_rows(batch, of_nothing=0)
            if rows:
                shared, own, metrics = computed(state, batch, np.float32(rows))
            else:
                shared, own, metrics = nothing(state)
            shapes = forms.agreed({name: list(metrics[name].shape) for name in metrics} if rows else None)
            told = [metrics[name] if rows else np.zeros(shape, np.float32) for name, shape in shapes.items()]
            with self._workers.group.summands([*shared, np.float32(rows), *told]) as summands:
                after: tuple[TrainState, Metrics] = update(state, summands, own, names=tuple(shapes))
                # Some summands lie in the memory of other workers, who want it back.
                jax.block_until_ready(after)
            return after

        return step


def _total(parts: Sequence[Any]) -> Any:
    """The sum of the workers' parts, in their order."""
    return functools.reduce(jnp.add, map(wide, parts))
