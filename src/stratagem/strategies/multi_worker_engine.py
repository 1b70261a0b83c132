"""How the gradients of several processes become one update: computed here, summed between all, applied here.

Every worker weighs what it sends with its number of rows, so the sums are those over the global batch, however
unevenly its rows are spread; a worker without a row sends zeros, and computes nothing.
"""

import json
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.errors import StrategyError
from stratagem.strategies.engines import Step, forward_and_back
from stratagem.strategies.replicas import Replicas
from stratagem.strategies.rows import count_rows
from stratagem.strategies.workers import Array, Workers
from stratagem.waist import Arrays, Metrics, Trainable, TrainState


class Reducer(Protocol):
    """Sums between workers."""

    def all_reduce(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Each array summed over all workers, in their order."""
        ...


class MultiWorkerEngine:
    """Variables on every device of every worker; gradients are summed between the workers.

    Args:
        replicas: The devices of this worker.
        workers: The workers.
        reducer: Sums between them.
    """

    def __init__(self, replicas: Replicas, workers: Workers, reducer: Reducer) -> None:
        self.replicas = replicas
        self._workers = workers
        self._reducer = reducer

    def lay_out(self, state: TrainState) -> TrainState:
        """A copy of everything on every device of this worker."""
        laid_out: TrainState = self.replicas.replicate(state)
        return laid_out

    def build(self, trainable: Trainable) -> Step:
        """Compute, sum, update."""
        index = self._workers.index

        def compute(state: TrainState, batch: Any, rows: Any) -> tuple[Arrays, Arrays, Arrays, Metrics]:
            rng = jax.random.fold_in(state.rng, index)
            grads, others, metrics = forward_and_back(trainable, state, batch, rng)
            weighted = (
                [rows * grad for grad in grads],
                [rows * other for other in others if is_averaged(other)],
            )
            counted = [other for other in others if not is_averaged(other)]
            return (
                *weighted,
                counted,
                {name: rows * jnp.asarray(metric, jnp.float32) for name, metric in metrics.items()},
            )

        def update(
            state: TrainState, grads: Arrays, averaged: Arrays, counted: Arrays, metrics: Metrics, rows: Any
        ) -> tuple[TrainState, Metrics]:
            means = [
                (grad / rows).astype(param.dtype)
                for grad, param in zip(grads, state.flat_params, strict=True)
            ]
            floating, others = iter(averaged), iter(counted)
            kept = [
                (next(floating) / rows).astype(old.dtype) if is_averaged(old) else next(others)
                for old in state.flat_state
            ]
            return state.updated(means, kept), {name: metric / rows for name, metric in metrics.items()}

        whole = self.replicas.whole
        computed = jax.jit(compute, out_shardings=whole)
        updated = jax.jit(update, donate_argnums=0, out_shardings=whole)
        plan = _MetricsPlan(self._workers)

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            rows = count_rows(batch) if jax.tree.leaves(batch) else 0
            if rows:
                grads, averaged, counted, metrics = computed(state, batch, np.float32(rows))
            else:
                grads = [np.zeros(param.shape, param.dtype) for param in state.flat_params]
                averaged = [
                    np.zeros(other.shape, other.dtype) for other in state.flat_state if is_averaged(other)
                ]
                counted = [other for other in state.flat_state if not is_averaged(other)]
                metrics = {}
            names = plan.names(sorted(metrics) if rows else None)
            told = [np.asarray(metrics[name]) if rows else np.zeros((), np.float32) for name in names]
            sums = self._reducer.all_reduce([*grads, *averaged, *told, np.float32(rows)])
            middle, end = len(grads), len(grads) + len(averaged)
            after: tuple[TrainState, Metrics] = updated(
                state,
                list(sums[:middle]),
                list(sums[middle:end]),
                counted,
                dict(zip(names, sums[end:-1], strict=True)),
                sums[-1],
            )
            return after

        return step


def is_averaged(array: Any) -> bool:
    """Whether non-trained state is averaged over workers: statistics are, seeds and counters are not."""
    return bool(jnp.issubdtype(array.dtype, jnp.floating))


class _MetricsPlan:
    """The names of the metrics, which a worker that has not computed any learns from the others."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._names: list[str] | None = None

    def names(self, own: list[str] | None) -> list[str]:
        """The agreed names; asks the others at the first step."""
        if self._names is None:
            told = [_decoded(each) for each in self._workers.gather(_encoded(own))]
            known = [names for names in told if names is not None]
            if any(names != known[0] for names in known):
                raise StrategyError(f"the workers' loss functions return different metrics: {known}")
            self._names = known[0]
        return self._names


def _encoded(names: list[str] | None) -> Array:
    return np.frombuffer(json.dumps(names).encode(), np.uint8)


def _decoded(array: Array) -> list[str] | None:
    decoded: list[str] | None = json.loads(array.tobytes())
    return decoded
