"""What each worker contributes to an update, weighed with its rows, and the update that the sums of all workers make.

The sums are means over the rows of the global batch, however unevenly these are spread.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.engines.engine import forward_and_back
from stratagem.engines.forms import MetricForms
from stratagem.engines.group_workers import GroupWorkers
from stratagem.engines.replicas import Replicas
from stratagem.engines.rows import count_rows
from stratagem.waist import Arrays, Metrics, Trainable, TrainState

Contribute = Callable[[TrainState, Any], tuple[list[Any], Arrays, tuple[str, ...]]]


def contributor(trainable: Trainable, replicas: Replicas, workers: GroupWorkers) -> Contribute:
    """Return a function that computes what this worker contributes to a step, given a state and its part of the batch.

    It returns arrays to be summed over all workers (gradients, shared state, the number of rows, metrics), state of the
    worker's own, and the names of the metrics. A worker without a row computes nothing and contributes zeros.
    """

    def compute(state: TrainState, batch: Any, rows: Any) -> tuple[Arrays, Arrays, Metrics]:
        return contribution(trainable, state, batch, rows, workers.index)

    compute = jax.jit(compute, out_shardings=replicas.whole)
    forms = MetricForms(workers)

    def contribute(state: TrainState, batch: Any) -> tuple[list[Any], Arrays, tuple[str, ...]]:
        rows = count_rows(batch, of_nothing=0)
        shared, own, metrics = compute(state, batch, np.float32(rows)) if rows else nothing(state)
        shapes = forms.agreed({name: list(metrics[name].shape) for name in metrics} if rows else None)
        values = [metrics[name] if rows else np.zeros(shape, np.float32) for name, shape in shapes.items()]
        return [*shared, np.float32(rows), *values], own, tuple(shapes)

    return contribute


def total(summands: Sequence[Sequence[Any]]) -> list[Any]:
    """Add up what all workers have contributed, in the order of the workers; traceable."""
    return [functools.reduce(jnp.add, map(wide, column)) for column in zip(*summands, strict=True)]


def contribution(
    trainable: Trainable, state: TrainState, batch: Any, rows: Any, worker: Any
) -> tuple[Arrays, Arrays, Metrics]:
    """What a worker has computed of its part of a batch; traceable.

    Args:
        trainable: The model.
        state: Its state.
        batch: The worker's part.
        rows: How many rows that has: its weight.
        worker: Which worker it is; each draws its own random numbers.

    Returns:
        What is to be summed: gradients, then state that the workers share. State of the worker's own. Metrics, which are
        to be summed too.
    """
    grads, others, metrics = forward_and_back(trainable, state, batch, jax.random.fold_in(state.rng, worker))
    shared = [
        rows * new if kind == "mean" else new - old
        for kind, old, new in zip(state.kinds, state.flat_state, others, strict=True)
        if kind != "own"
    ]
    own = [other for kind, other in zip(state.kinds, others, strict=True) if kind == "own"]
    means = {name: rows * jnp.asarray(metric, jnp.float32) for name, metric in metrics.items()}
    return [*(rows * grad for grad in grads), *shared], own, means


def nothing(state: TrainState) -> tuple[Arrays, Arrays, Metrics]:
    """What a worker without a row contributes: zeros, its own state as it is, and no metrics."""
    kinds = list(zip(state.kinds, state.flat_state, strict=True))
    shared = [*state.flat_params, *(each for kind, each in kinds if kind != "own")]
    own = [each for kind, each in kinds if kind == "own"]
    return [np.zeros(each.shape, each.dtype) for each in shared], own, {}


def updated_by(
    trainable: Trainable, state: TrainState, totals: Sequence[Any], own: Arrays, names: Sequence[str]
) -> tuple[TrainState, Metrics]:
    """Return what `updated` does, given the totals of what `contributor` returns; traceable."""
    *sums, rows = totals[: len(totals) - len(names)]
    metrics = dict(zip(names, totals[len(sums) + 1 :], strict=True))
    return updated(trainable, state, sums, rows, own, metrics)


def updated(
    trainable: Trainable, state: TrainState, sums: Sequence[Any], rows: Any, own: Arrays, metrics: Metrics
) -> tuple[TrainState, Metrics]:
    """The state after an update, and the metrics of the global batch; traceable.

    Args:
        trainable: The model.
        state: Its state.
        sums: The sums of what all workers have contributed, in its order.
        rows: The sum of their weights.
        own: State of this worker's own.
        metrics: The sums of their metrics.
    """
    share = 1 / rows  # to divide every element would take several times as long
    ahead, mine = iter(sums), iter(own)
    grads = [(next(ahead) * share).astype(param.dtype) for param in state.flat_params]
    kept = [
        next(mine)
        if kind == "own"
        else (next(ahead) * share if kind == "mean" else old + next(ahead)).astype(old.dtype)
        for kind, old in zip(state.kinds, state.flat_state, strict=True)
    ]
    means = {name: each * share for name, each in metrics.items()}
    return state.updated(grads, kept), {**means, **trainable.report(kept)}


def seen(trainable: Trainable, state: TrainState) -> TrainState:
    """Return the part of a state that computing gradients reads."""
    read = state.flat_opt_state if trainable.reads_optimizer else []
    return TrainState(state.flat_params, read, state.flat_state, None, state.step, state.recipe)


def wide(array: Any) -> Any:
    """An array in the type that it is summed in: half precision is summed in single."""
    is_floating = jnp.issubdtype(array.dtype, jnp.floating)
    return array.astype(jnp.promote_types(array.dtype, jnp.float32)) if is_floating else array
