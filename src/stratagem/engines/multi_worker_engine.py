"""How the gradients of several processes become one update: computed here, summed between all, applied here.

Every worker weighs what it sends with its number of rows, so the sums are those over the global batch, however
unevenly its rows are spread; a worker without a row sends zeros, and computes nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from stratagem.engines.contributions import contributor, total, updated_by
from stratagem.engines.engine import Step
from stratagem.engines.group_workers import GroupWorkers
from stratagem.engines.replicas import Replicas
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

        def update(
            state: TrainState, summands: Sequence[Sequence[Any]], own: Arrays, names: Sequence[str]
        ) -> tuple[TrainState, Metrics]:
            return updated_by(trainable, state, total(summands), own, names)

        contribute = contributor(trainable, self.replicas, self._workers)
        update = jax.jit(update, donate_argnums=0, out_shardings=self.replicas.whole, static_argnames="names")

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            arrays, own, names = contribute(state, batch)
            with self._workers.group.summands(arrays) as summands:
                after: tuple[TrainState, Metrics] = update(state, summands, own, names=names)
                # Some summands lie in the memory of other workers, who want it back.
                jax.block_until_ready(after)
            return after

        return step
