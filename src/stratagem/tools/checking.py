"""The trials of `stratagem check`: whether a strategy trains as one device does, and how fast, compared with bare JAX.

As a program, it is a task of a job that tries one strategy; the chief writes the result:

python -m stratagem.tools.checking CASE SECONDS FILE
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stratagem.devices import visible_gpus
from stratagem.environment import current
from stratagem.strategies import (
    CentralStorageStrategy,
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    Strategy,
    TPUStrategy,
)

TOLERANCE = 1e-4
"""The largest difference from one device, relative to the largest value, that sums in another order explain."""
_STEPS = 40
_ROWS = (1.0, 1.0, 0.7, 1.0, 0.04)
"""Sizes of batches, relative to the largest: most divide evenly, some do not, the last may leave workers without a row."""
_SMALL, _LARGE = (32, 64, 10), (784, 2048, 10)
_ROWS_OF_REPLICA = 256
ROUNDS = 5
"""Rounds of a race."""
_LEARNING_RATE = 1e-2

Loop = Callable[[int], None]
"""Trains for a number of steps, and waits until they are done."""

ONE_DEVICE = "OneDevice"
MIRRORED, MIRRORED_SHARDED = "Mirrored", "Mirrored, shard_state"
CENTRAL = "CentralStorage"
TPU = "TPU"
MULTI_WORKER = "MultiWorkerMirrored"
MULTI_WORKER_XLA = "MultiWorkerMirrored by XLA"
MULTI_WORKER_XLA_SHARDED = "MultiWorkerMirrored by XLA, shard_state"


def _xla_communication() -> Literal["nccl", "ring"]:
    return "nccl" if visible_gpus(current()) else "ring"


_STRATEGIES: dict[str, Callable[[], Strategy]] = {
    ONE_DEVICE: lambda: OneDeviceStrategy(f"/{jax.default_backend()}:0"),
    MIRRORED: MirroredStrategy,
    MIRRORED_SHARDED: lambda: MirroredStrategy(shard_state=True),
    CENTRAL: CentralStorageStrategy,
    TPU: TPUStrategy,
    MULTI_WORKER: MultiWorkerMirroredStrategy,
    MULTI_WORKER_XLA: lambda: MultiWorkerMirroredStrategy(communication=_xla_communication()),
    MULTI_WORKER_XLA_SHARDED: lambda: MultiWorkerMirroredStrategy(
        communication=_xla_communication(), shard_state=True
    ),
}


@dataclass(frozen=True)
class Case:
    """A strategy on some devices of this machine."""

    name: str  # the strategy
    devices: int = 1  # number of devices of each process
    workers: int = 1  # number of processes


def cases(devices: int, are_tpus: bool) -> Iterator[Case]:
    """Yield the strategies that differ on a machine with this number of devices."""
    yield Case(ONE_DEVICE)
    if devices == 1:
        return
    for name in (MIRRORED, MIRRORED_SHARDED, CENTRAL):
        yield Case(name, devices)
    if are_tpus:  # one process has all of them
        yield Case(TPU, devices)
        return
    for name in (MULTI_WORKER, MULTI_WORKER_XLA, MULTI_WORKER_XLA_SHARDED):
        yield Case(name, devices // 2, workers=2)


@dataclass(frozen=True)
class TrialResult:
    """The result of trying one strategy."""

    replicas: int  # number of devices that trained
    kinds: str  # the kinds of these devices
    difference: float  # the largest difference from one device, relative to the largest value
    examples_per_second: float  # speed of training a 784-2048-10 model
    # That speed, relative to bare JAX over the same devices; `None` where JAX cannot sum over the devices of several processes.
    of_bare_jax: float | None

    @property
    def agrees(self) -> bool:
        """Whether training agrees with one device."""
        return self.difference <= TOLERANCE


def try_case(name: str, seconds: float) -> tuple[bool, TrialResult]:
    """Try the strategy of this name in this process. Return whether this is the chief, and the result."""
    with _STRATEGIES[name]() as strategy:
        return strategy.is_chief, _try_strategy(strategy, seconds)


def _try_strategy(strategy: Strategy, seconds: float) -> TrialResult:
    """Try a strategy, in rounds of this duration, together with all other workers."""
    devices = strategy.engine.replicas.devices
    with jax.default_matmul_precision("highest"):  # otherwise accelerators round differently
        ours = _losses_and_state(strategy)
        one = _losses_and_state(OneDeviceStrategy(_device_name(devices[0])))
    kinds = sorted({device.device_kind for device in devices})
    speed, ratio = _race_bare_jax(strategy, seconds)
    return TrialResult(strategy.num_replicas_in_sync, ", ".join(kinds), _difference(ours, one), speed, ratio)


def _device_name(device: jax.Device) -> str:
    local = [each.id for each in jax.local_devices(backend=device.platform)]
    return f"/{device.platform}:{local.index(device.id)}"


# Agreement with one device.


def _losses_and_state(strategy: Strategy) -> list[Any]:
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
    return float(np.max(differences))  # NaN if any of them is


def loss_fn(params: Any, batch: Any) -> jax.Array:
    """Return the mean cross-entropy of a network with one hidden layer."""
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


# Speed.


def _race_bare_jax(strategy: Strategy, seconds: float) -> tuple[float, float | None]:
    """Return examples per second, and their ratio to those of bare JAX: medians of rounds in which both take turns."""
    rows = _ROWS_OF_REPLICA * strategy.num_replicas_in_sync
    ours, bare = _strategy_loop(strategy, rows), _bare_jax_loop(strategy, rows)
    steps = _steps_in(strategy, ours, seconds)
    if bare is not None:
        bare(2)
    speeds, ratios = [], []
    for _ in range(ROUNDS):
        duration = _time(ours, steps)
        speeds.append(rows * steps / duration)
        if bare is not None:
            ratios.append(_time(bare, steps) / duration)
    return statistics.median(speeds), statistics.median(ratios) if ratios else None


def _steps_in(strategy: Strategy, loop: Loop, seconds: float) -> int:
    """Return the number of steps that take `seconds`, the same on every worker."""
    loop(2)  # compiles
    step_seconds = float(strategy.reduce("mean", _time(loop, 3))) / 3
    return max(1, int(seconds / step_seconds))


def _time(loop: Loop, steps: int) -> float:
    start = time.perf_counter()
    loop(steps)
    return time.perf_counter() - start


def _strategy_loop(strategy: Strategy, rows: int) -> Loop:
    state = strategy.init(_parameters(_LARGE), optax.sgd(_LEARNING_RATE))
    step = strategy.train_step(loss_fn)
    feed = iter(strategy.distribute(_endless_batches(rows)))

    def loop(steps: int) -> None:
        nonlocal state
        for _ in range(steps):
            state, _ = step(state, next(feed))
        jax.block_until_ready(state)

    return loop


def _endless_batches(rows: int) -> Iterator[Any]:
    random = np.random.default_rng(2)
    batches = [_batch(random, _LARGE, rows) for _ in range(4)]
    while True:
        yield from batches


def _bare_jax_loop(strategy: Strategy, rows: int) -> Loop | None:
    """Return a jitted step over a mesh, as written by hand; `None` if JAX does not see the other processes' devices."""
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
    feed = _endless_batches(rows // workers.count)

    def loop(steps: int) -> None:
        nonlocal params, opt_state
        for _ in range(steps):
            batch = place(lambda leaf: jax.make_array_from_process_local_data(split, leaf), next(feed))
            params, opt_state = compiled(params, opt_state, batch)
        jax.block_until_ready(params)

    return loop


if __name__ == "__main__":
    is_chief, result = try_case(sys.argv[1], float(sys.argv[2]))
    if is_chief:
        Path(sys.argv[3]).write_text(json.dumps(asdict(result)))
