"""The short job with which `stratagem plan --measure` measures this machine: a worker with one server.

python -m stratagem.tools.planning.measuring_job RESULT BYTES ROWS
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stratagem.parameters.push import Contribution
from stratagem.strategies import ParameterServerStrategy
from stratagem.tools.planning.job_profile import MachineTimes

_WIDTH = 1024
_REPEATS, _LEAST = 60, 5
_SECONDS = 1.5
"""For each figure at most, unless that is too short for the least number of repeats."""


def layers(model_bytes: int) -> list[np.ndarray]:
    """Return matrices of a width that is usual in models, of this total size."""
    parameters = max(1, model_bytes // 4)
    whole, rest = divmod(parameters, _WIDTH * _WIDTH)
    matrices = [np.full((_WIDTH, _WIDTH), 1e-3, np.float32) for _ in range(whole)]
    if rest >= _WIDTH:
        matrices.append(np.full((_WIDTH, rest // _WIDTH), 1e-3, np.float32))
    return matrices or [np.full((rest, 1), 1e-3, np.float32)]


def loss_fn(params: list[jax.Array], batch: jax.Array) -> jax.Array:
    """Read every parameter once for each row, as a dense model does."""
    outputs = [jnp.mean((batch[:, : layer.shape[0]] @ layer) ** 2) for layer in params]
    return jnp.asarray(sum(outputs))


def usual_seconds(act: Callable[[], Any]) -> float:
    """Return the usual duration of a call, after two calls to warm up.

    This is the lower quartile: shorter times are luck, and in longer ones the call waited for other processes.
    """
    act(), act()
    times: list[float] = []
    while len(times) < _REPEATS and (len(times) < _LEAST or sum(times) < _SECONDS):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return statistics.quantiles(times)[0]


def measure_wire(state: Any) -> tuple[float, float]:
    """Return the seconds of a push and of a pull of a model, without any computing on this side."""
    served = state.recipe.home.servers
    gradients = [np.zeros(leaf.shape, leaf.dtype) for leaf in state.flat_params]
    contribution = Contribution(1, served.plan.scatter(gradients))
    return usual_seconds(lambda: served.client.push(contribution)), usual_seconds(served.client.pull)


def measure_average(params: list[np.ndarray]) -> float:
    """Return the seconds per byte to add one gradient to another."""
    total = [np.zeros_like(layer) for layer in params]
    size = sum(layer.nbytes for layer in params)
    return (
        usual_seconds(lambda: [np.add(one, other, out=one) for one, other in zip(total, params, strict=True)])
        / size
    )


def main(result: str, model_bytes: int, rows: int) -> None:
    """Measure, and write the times to a file."""
    strategy = ParameterServerStrategy()
    params, batch = layers(model_bytes), np.full((rows, _WIDTH), 1e-3, np.float32)
    empty = strategy.init([np.zeros((1, 1), np.float32)], optax.adam(1e-3))
    empty_push, empty_pull = measure_wire(empty)
    state = strategy.init(params, optax.adam(1e-3))
    push, pull = measure_wire(state)
    gradient = jax.jit(jax.grad(loss_fn))
    device = jax.device_put(params)
    computing = usual_seconds(lambda: jax.block_until_ready(gradient(device, batch)))
    train_step = strategy.train_step(loss_fn)

    def step() -> None:
        nonlocal state
        state, _ = train_step(state, batch)

    MachineTimes(
        model_bytes=sum(layer.nbytes for layer in params),
        gradient=computing,
        step=usual_seconds(step),
        push=push,
        pull=pull,
        empty_push=empty_push,
        empty_pull=empty_pull,
        average_per_byte=measure_average(params),
    ).write(Path(result))
    strategy.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
