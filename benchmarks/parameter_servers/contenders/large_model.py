"""25 million parameters under Adam: a push and pull of one worker, and the least that it could cost.

The gradients are the same at every step, so that making them costs nothing.
"""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import stratagem as sg
from benchmarks.parameter_servers.task import Run, Task
from stratagem.parameters.push import Contribution
from stratagem.runtime.wire import empty_aligned

SHAPES = ((5000, 4000), (1250, 4000))
LEARNING_RATE = 1e-3
GRADIENT = 0.01


def push_and_pull(task: Task) -> Run:
    """Below the strategy, where a step would compute its gradients first."""
    strategy = sg.ParameterServerStrategy(update=sg.Async())
    state = strategy.init(_filled(0.0), optax.adam(LEARNING_RATE))
    client: Any = state.recipe.home.servers.client  # type: ignore[union-attr]
    contribution = Contribution(1, [_filled(GRADIENT)])

    def run(turns: Iterable[object]) -> tuple[int, float]:
        outcome = client.pull()
        for _ in turns:
            outcome = client.push(contribution)
        return int(outcome.step), float(outcome.leaves[0][0][0, 0])

    return run


def copies_and_update(task: Task) -> Run:
    """Gradients copied in, a donated update, parameters copied out, in one process."""
    optimizer = optax.adam(LEARNING_RATE)
    grads, sent, received = _filled(GRADIENT), _filled(0.0), _filled(0.0)
    params = jax.device_put([jnp.zeros(shape) for shape in SHAPES])
    opt_state = optimizer.init(params)
    done = 0

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(params: Any, opt_state: Any, grads: Any) -> tuple[Any, Any]:
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    def run(turns: Iterable[object]) -> tuple[int, float]:
        nonlocal params, opt_state, done
        for _ in turns:
            _copy(grads, sent)
            params, opt_state = jax.block_until_ready(update(params, opt_state, sent))
            # Views that nobody keeps: an array that NumPy still sees is copied when it is donated.
            _copy([np.from_dlpack(param) for param in params], received)
            done += 1
        return done, float(received[0][0, 0])

    return run


def _copy(values: list[Any], places: list[Any]) -> None:
    for value, place in zip(values, places, strict=True):
        np.copyto(place, value)


def _filled(value: float) -> list[Any]:
    """Arrays aligned as XLA wants them, which then reads them in place."""
    dtype = np.dtype(np.float32)
    arrays = [empty_aligned(dtype, shape, math.prod(shape) * dtype.itemsize) for shape in SHAPES]
    for array in arrays:
        array.fill(value)
    return arrays
