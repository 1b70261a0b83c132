"""How the gradients of several processes become one update: computed here, summed between all, applied here.

Every worker weighs what it sends with its number of rows, so the sums are those over the global batch, however
unevenly its rows are spread; a worker without a row sends zeros, and computes nothing.
"""

import functools
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.collectives import Group
from stratagem.errors import StrategyError
from stratagem.strategies.engines import Step, forward_and_back
from stratagem.strategies.replicas import Replicas
from stratagem.strategies.rows import count_rows
from stratagem.strategies.workers import Array, Workers
from stratagem.waist import Arrays, Metrics, Trainable, TrainState

_Shapes: TypeAlias = dict[str, list[int]]
"""The shapes of metrics, by their names."""


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

    is_elsewhere = False

    def __init__(self, replicas: Replicas, workers: Workers, reducer: Reducer) -> None:
        self.replicas = replicas
        self._workers = workers
        self._reducer = reducer

    def _summands(self, arrays: Arrays) -> AbstractContextManager[Sequence[Sequence[Any]]]:
        reducer = self._reducer
        return reducer.summands(arrays) if isinstance(reducer, Group) else self._summed(reducer, arrays)

    @contextmanager
    def _summed(self, reducer: Reducer, arrays: Arrays) -> Iterator[Sequence[Sequence[Any]]]:
        # A sum may be on one device of this worker, and the update runs on all of them.
        yield [self.replicas.replicate(list(reducer.all_reduce(arrays)))]

    def lay_out(self, state: TrainState) -> TrainState:
        """A copy of everything on every device of this worker."""
        laid_out: TrainState = self.replicas.replicate(state)
        if state.recipe.workers is self._workers:
            return laid_out
        return replace(laid_out, recipe=replace(state.recipe, workers=self._workers))

    def build(self, trainable: Trainable) -> Step:
        """Compute, sum, update."""
        index = self._workers.index

        def compute(state: TrainState, batch: Any, rows: Any) -> tuple[Arrays, Arrays, Arrays, Metrics]:
            rng = jax.random.fold_in(state.rng, index)
            grads, others, metrics = forward_and_back(trainable, state, batch, rng)
            told = [
                rows * new if kind == "mean" else new - old
                for kind, old, new in zip(state.kinds, state.flat_state, others, strict=True)
                if kind != "own"
            ]
            own = [other for kind, other in zip(state.kinds, others, strict=True) if kind == "own"]
            means = {name: rows * jnp.asarray(metric, jnp.float32) for name, metric in metrics.items()}
            return [rows * grad for grad in grads], told, own, means

        def update(
            state: TrainState, summands: Sequence[Arrays], own: Arrays, names: Sequence[str]
        ) -> tuple[TrainState, Metrics]:
            *sums, rows = [_total(column) for column in zip(*summands, strict=True)]
            share = 1 / rows  # to divide every element would take several times as long
            ahead, mine = iter(sums), iter(own)
            grads = [(next(ahead) * share).astype(param.dtype) for param in state.flat_params]
            kept = [
                next(mine)
                if kind == "own"
                else (next(ahead) * share if kind == "mean" else old + next(ahead)).astype(old.dtype)
                for kind, old in zip(state.kinds, state.flat_state, strict=True)
            ]
            metrics = {name: each * share for name, each in zip(names, ahead, strict=True)}
            return state.updated(grads, kept), {**metrics, **trainable.report(kept)}

        whole = self.replicas.whole
        computed = jax.jit(compute, out_shardings=whole)
        updated = jax.jit(update, donate_argnums=0, out_shardings=whole, static_argnames="names")
        plan = _MetricsPlan(self._workers)

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            rows = count_rows(batch, of_nothing=0)
            if rows:
                grads, others, own, metrics = computed(state, batch, np.float32(rows))
            else:
                kinds = list(zip(state.kinds, state.flat_state, strict=True))
                grads = [np.zeros(param.shape, param.dtype) for param in state.flat_params]
                others = [np.zeros(other.shape, other.dtype) for kind, other in kinds if kind != "own"]
                own = [other for kind, other in kinds if kind == "own"]
                metrics = {}
            own_shapes = {name: list(metrics[name].shape) for name in sorted(metrics)} if rows else None
            shapes = plan.shapes(own_shapes)
            told = [metrics[name] if rows else np.zeros(shape, np.float32) for name, shape in shapes.items()]
            with self._summands([*grads, *others, *told, np.float32(rows)]) as summands:
                after: tuple[TrainState, Metrics] = updated(state, summands, own, names=tuple(shapes))
                # Some summands lie in the memory of other workers, who want it back.
                jax.block_until_ready(after)
            return after

        return step


def _total(parts: Sequence[Any]) -> Any:
    """The sum of the workers' parts, in their order; half precision is summed in single."""
    if jnp.issubdtype(parts[0].dtype, jnp.floating):
        wide = jnp.promote_types(parts[0].dtype, jnp.float32)
        parts = [part.astype(wide) for part in parts]
    return functools.reduce(jnp.add, parts)


class _MetricsPlan:
    """The names and shapes of the metrics, which a worker that has not computed any learns from the others."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._shapes: _Shapes | None = None

    def shapes(self, own: _Shapes | None) -> _Shapes:
        """The agreed shapes by name; asks the others at the first step."""
        if self._shapes is None:
            told = [_decoded(each) for each in self._workers.gather(_encoded(own))]
            known = [shapes for shapes in told if shapes is not None]
            if any(shapes != known[0] for shapes in known):
                raise StrategyError(f"the workers' loss functions return different metrics: {known}")
            self._shapes = known[0]
        return self._shapes


def _encoded(shapes: _Shapes | None) -> Array:
    return np.frombuffer(json.dumps(shapes).encode(), np.uint8)


def _decoded(array: Array) -> _Shapes | None:
    decoded: _Shapes | None = json.loads(array.tobytes())
    return decoded
