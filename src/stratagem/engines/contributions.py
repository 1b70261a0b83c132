"""What each worker contributes to an update, weighed with its rows, and the update that the sums of all workers make.

The sums are means over the rows of the global batch, however unevenly these are spread.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.engines.engine import forward_and_back
from stratagem.waist import Arrays, Metrics, Trainable, TrainState


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


def wide(array: Any) -> Any:
    """An array in the type that it is summed in: half precision is summed in single."""
    is_floating = jnp.issubdtype(array.dtype, jnp.floating)
    return array.astype(jnp.promote_types(array.dtype, jnp.float32)) if is_floating else array
