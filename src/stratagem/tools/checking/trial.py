"""One strategy tried in this process: whether it trains as one device does, and how fast, beside bare JAX."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stratagem.strategies import OneDeviceStrategy, Strategy

TOLERANCE = 1e-4
"""The largest difference to one device, relative to the largest value: sums in another order, and no more."""
_STEPS = 40
_ROWS = (1.0, 1.0, 0.7, 1.0, 0.04)
"""Of the batches, relative to the largest: most divide evenly, some do not, the last may leave workers without a row."""
_SMALL, _LARGE = (32, 64, 10), (784, 2048, 10)
_ROWS_OF_REPLICA = 256
ROUNDS = 5
"""Of a race."""
_LEARNING_RATE = 1e-2

Loop = Callable[[int], None]
"""Trains for so many steps, and waits until they are done."""


@dataclass(frozen=True)
class Found:
    """What a trial has found.

    Attributes:
        replicas: How many devices trained.
        kinds: What they are.
        difference: The largest to one device, relative to the largest value.
        examples_per_second: How fast it trains a model of 784-2048-10.
        of_bare_jax: That, relative to plain JAX over the same devices; `None` where those of several processes are not
            JAX's to sum over.
    """

    replicas: int
    kinds: str
    difference: float
    examples_per_second: float
    of_bare_jax: float | None

    @property
    def agrees(self) -> bool:
        """Whether it is as on one device."""
        return self.difference <= TOLERANCE


def tried(strategy: Strategy, seconds: float) -> Found:
    """Try a strategy; of several workers, all call this together.

    Args:
        strategy: The strategy.
        seconds: How long each of some rounds takes, of its own and of bare JAX's.
    """
    devices = strategy.engine.replicas.devices
    with jax.default_matmul_precision("highest"):  # or accelerators round as they like
        ours = _conforming(strategy)
        one = _conforming(OneDeviceStrategy(_name(devices[0])))
    kinds = sorted({device.device_kind for device in devices})
    speed, ratio = _raced(strategy, seconds)
    return Found(strategy.num_replicas_in_sync, ", ".join(kinds), _difference(ours, one), speed, ratio)


def _name(device: jax.Device) -> str:
    here = [each.id for each in jax.local_devices(backend=device.platform)]
    return f"/{device.platform}:{here.index(device.id)}"


# The same as on one device.


def _conforming(strategy: Strategy) -> list[Any]:
    random = np.random.default_rng(0)
    most = 4 * 24
    state = strategy.init(_parameters(_SMALL), optax.adam(_LEARNING_RATE), ema_decay=0.9)
    step = strategy.train_step(loss_fn)
    losses = []
    sizes = [max(1, int(most * _ROWS[number % len(_ROWS)])) for number in range(_STEPS)]
    for batch in strategy.distribute([_batch(random, _SMALL, rows) for rows in sizes]):
        state, metrics = step(state, batch)
        losses.append(metrics)
    fetched = strategy.fetch(state)
    return [[float(each["loss"]) for each in losses], *jax.tree.leaves((fetched.params, fetched.ema))]


def _difference(ours: Sequence[Any], others: Sequence[Any]) -> float:
    differences = [
        np.max(np.abs(np.subtract(one, other))) / max(np.max(np.abs(other)), 1e-6)
        for one, other in zip(ours, others, strict=True)
    ]
    return float(np.max(differences))  # not a number if one of them is none


def loss_fn(params: Any, batch: Any) -> jax.Array:
    """Mean cross-entropy of a network with one hidden layer."""
    values, labels = batch
    hidden = jnp.tanh(values @ params["w1"] + params["b1"])
    scores = hidden @ params["w2"] + params["b2"]
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, labels))


def _parameters(sizes: tuple[int, int, int]) -> dict[str, Any]:
    random = np.random.default_rng(1)
    inputs, hidden, classes = sizes
    return {
        "w1": random.normal(0, inputs**-0.5, (inputs, hidden)).astype(np.float32),
        "b1": np.zeros(hidden, np.float32),
        "w2": random.normal(0, hidden**-0.5, (hidden, classes)).astype(np.float32),
        "b2": np.zeros(classes, np.float32),
    }


def _batch(random: np.random.Generator, sizes: tuple[int, int, int], rows: int) -> tuple[Any, Any]:
    inputs = random.standard_normal((rows, sizes[0]), np.float32)
    return inputs, random.integers(0, sizes[-1], rows, np.int32)


# How fast.


def _raced(strategy: Strategy, seconds: float) -> tuple[float, float | None]:
    """Examples per second, and their ratio to bare JAX's: both in turn, the median of rounds."""
    rows = _ROWS_OF_REPLICA * strategy.num_replicas_in_sync
    ours, bare = _own_loop(strategy, rows), _bare_loop(strategy, rows)
    steps = _steps_in(strategy, ours, seconds)
    if bare is not None:
        bare(2)
    speeds, ratios = [], []
    for _ in range(ROUNDS):
        own = _timed(ours, steps)
        speeds.append(rows * steps / own)
        if bare is not None:
            ratios.append(_timed(bare, steps) / own)
    return statistics.median(speeds), statistics.median(ratios) if ratios else None


def _steps_in(strategy: Strategy, loop: Loop, seconds: float) -> int:
    """How many steps take so long: the same number on every worker."""
    loop(2)  # compiled
    took = float(strategy.reduce("mean", _timed(loop, 3))) / 3
    return max(1, int(seconds / took))


def _timed(loop: Loop, steps: int) -> float:
    began = time.perf_counter()
    loop(steps)
    return time.perf_counter() - began


def _own_loop(strategy: Strategy, rows: int) -> Loop:
    state = strategy.init(_parameters(_LARGE), optax.sgd(_LEARNING_RATE))
    step = strategy.train_step(loss_fn)
    feed = iter(strategy.distribute(_endless(rows)))

    def loop(steps: int) -> None:
        nonlocal state
        for _ in range(steps):
            state, _ = step(state, next(feed))
        jax.block_until_ready(state)

    return loop


def _endless(rows: int) -> Iterator[Any]:
    random = np.random.default_rng(2)
    few = [_batch(random, _LARGE, rows) for _ in range(4)]
    while True:
        yield from few


def _bare_loop(strategy: Strategy, rows: int) -> Loop | None:
    """What one would write by hand: a jitted step over a mesh; `None` if JAX does not know of the others' devices."""
    workers, own = strategy.workers, strategy.engine.replicas.devices
    if workers.count > 1 and jax.process_count() != workers.count:
        return None
    devices = own if workers.count == 1 else jax.devices(own[0].platform)
    mesh = Mesh(np.array(devices), ("data",))
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    optimizer = optax.sgd(_LEARNING_RATE)

    def step(params: Any, opt_state: Any, batch: Any) -> tuple[Any, Any]:
        updates, opt_state = optimizer.update(jax.grad(loss_fn)(params, batch), opt_state)
        return optax.apply_updates(params, updates), opt_state

    compiled = jax.jit(step, donate_argnums=(0, 1), out_shardings=whole)
    place = jax.tree.map
    params = place(lambda leaf: jax.make_array_from_process_local_data(whole, leaf), _parameters(_LARGE))
    opt_state = optimizer.init(params)
    feed = _endless(rows // workers.count)

    def loop(steps: int) -> None:
        nonlocal params, opt_state
        for _ in range(steps):
            batch = place(lambda leaf: jax.make_array_from_process_local_data(split, leaf), next(feed))
            params, opt_state = compiled(params, opt_state, batch)
        jax.block_until_ready(params)

    return loop
