"""The program of every worker of a contender: the same model on the same examples for the same time, under its strategy.

python -m stratagem.tools.bench.worker SETTINGS
"""

import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from stratagem.errors import DeadlineExceeded
from stratagem.parameters.rules import Async, BoundedStaleness, Sync
from stratagem.strategies import (
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    ParameterServerStrategy,
    Strategy,
)
from stratagem.tools.bench.contenders import STALENESS_BOUND, WorkerSettings
from stratagem.tools.bench.results import WorkerReport

LEARNING_RATE = 0.05
SEED = 0
_FIRST_STEPS = 3
"""Steps before the clock starts: the first compiles, the next ones settle what is kept for later steps."""
_POINTS = 25
"""Of a curve, approximately."""
_READY_SECONDS = 300.0
_POOL_BYTES = 64 << 20
_MOST_ROWS, _TEST_ROWS = 20_000, 2_000
_DIRECTIONS, _HIDDEN = 16, 32
_NOISE = 0.3
_SQUARED_LENGTH = 64.0
"""Of an input, approximately: that of a picture of Fashion-MNIST, so that one learning rate suits all widths."""

Examples = tuple[NDArray[np.float32], NDArray[np.int32]]


class Teacher:
    """A classification that can be learned: a random network labels inputs near a few directions, all from one seed."""

    def __init__(self, inputs: int, classes: int) -> None:
        random = np.random.default_rng(SEED)
        self._inputs = inputs
        self._spread = random.standard_normal((_DIRECTIONS, inputs), np.float32)
        self._first = random.standard_normal((_DIRECTIONS, _HIDDEN), np.float32)
        self._second = random.standard_normal((_HIDDEN, classes), np.float32)

    def examples(self, rows: int, seed: int) -> Examples:
        """Return a number of examples, which depend on the seed."""
        random = np.random.default_rng((SEED, seed))
        causes = random.standard_normal((rows, _DIRECTIONS), np.float32)
        inputs = causes @ self._spread
        inputs += _NOISE * np.sqrt(_DIRECTIONS) * random.standard_normal(inputs.shape, np.float32)
        inputs *= np.float32(np.sqrt(_SQUARED_LENGTH / (self._inputs * _DIRECTIONS)))
        scores = np.maximum(causes @ self._first, 0) @ self._second
        return inputs, (scores - scores.mean(axis=0)).argmax(axis=1).astype(np.int32)

    def training(self, batch: int) -> Iterator[Examples]:
        """Yield batches without end, the same in every process; they are views of one pool, so that feeding costs nothing."""
        rows = max(2 * batch, min(_MOST_ROWS, _POOL_BYTES // (4 * self._inputs)))
        inputs, labels = self.examples(rows, seed=1)
        random = np.random.default_rng((SEED, 2))
        while True:
            start = int(random.integers(rows - batch + 1))
            yield inputs[start : start + batch], labels[start : start + batch]

    def test(self) -> Examples:
        """Return examples that are never trained on."""
        return self.examples(_TEST_ROWS, seed=3)


def first_parameters(layers: tuple[int, ...]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Return the initial parameters of every contender: a matrix and a vector for each layer."""
    random = np.random.default_rng((SEED, 4))
    return [
        (random.normal(0, np.sqrt(1 / wide), (wide, narrow)).astype(np.float32), np.zeros(narrow, np.float32))
        for wide, narrow in itertools.pairwise(layers)
    ]


def strategy_of(name: str) -> Strategy:
    """Make the strategy of a name in `contenders.KINDS`."""
    match name:
        case "one-device":
            return OneDeviceStrategy(f"/{jax.default_backend()}:0")
        case "mirrored":
            return MirroredStrategy()
        case "multi-worker":
            return MultiWorkerMirroredStrategy()
        case "sync":
            return ParameterServerStrategy(update=Sync())
        case "async":
            return ParameterServerStrategy(update=Async())
        case _:
            return ParameterServerStrategy(update=BoundedStaleness(STALENESS_BOUND))


def loss_fn(params: Any, batch: Any) -> jax.Array:
    """Return the mean softmax cross-entropy of a dense network with ReLU."""
    values, labels = batch
    *hidden, (matrix, vector) = params
    for weights, bias in hidden:
        values = jax.nn.relu(values @ weights + bias)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(values @ matrix + vector, labels))


class Worker:
    """One worker: its strategy, its model and its batches."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._strategy = strategy_of(settings.strategy)
        self._place = self._strategy.workers
        self._teacher = Teacher(settings.layers[0], settings.layers[-1])
        self._state = self._strategy.init(first_parameters(settings.layers), optax.sgd(LEARNING_RATE))
        self._step = self._strategy.train_step(loss_fn)
        rows = settings.batch * self._strategy.num_replicas_in_sync
        self._feed = iter(self._strategy.distribute(self._teacher.training(rows)))
        is_last = self._place.count > 1 and self._place.index == self._place.count - 1
        self._pause = settings.pause if is_last else 0.0
        self._staleness: Counter[int] = Counter()

    def work(self) -> None:
        """Train for the time in the settings, and write a report."""
        self._train(_FIRST_STEPS)
        self._staleness.clear()
        self._wait_for_all()
        steps, seconds, curve = self._train_for(self._settings.seconds)
        WorkerReport(
            steps=steps,
            seconds=seconds,
            examples=steps * self._settings.batch * len(self._strategy.engine.replicas),
            staleness=dict(self._staleness),
            curve=tuple(curve),
            loss=self._test() if self._place.index == 0 else None,
        ).write(self._file("report"))
        self._strategy.close()

    def _train_for(self, duration: float) -> tuple[int, float, list[tuple[float, float]]]:
        """Train in short runs. After each, workers in step agree on the time, so that all end with the same step."""
        steps, run, seconds = 0, 1, 0.0
        curve: list[tuple[float, float]] = []
        began = time.perf_counter()
        while seconds < duration:
            before, loss = seconds, self._train(run)
            steps += run
            now = time.perf_counter() - began
            seconds = float(self._strategy.reduce("mean", now))
            curve.append(((before + seconds) / 2, loss))
            run = max(1, int(steps / seconds * duration / _POINTS))
        return steps, time.perf_counter() - began, curve

    def _train(self, steps: int) -> float:
        """Train for a number of steps, wait until they are done, and return their mean loss."""
        all_metrics = []
        for batch in itertools.islice(self._feed, steps):
            if self._pause:
                time.sleep(self._pause)
            self._state, metrics = self._step(self._state, batch)
            all_metrics.append(metrics)
            if "staleness" in metrics:
                self._staleness[int(metrics["staleness"])] += 1
        jax.block_until_ready(self._state)
        return float(sum(float(metrics["loss"]) for metrics in all_metrics) / len(all_metrics))

    def _test(self) -> float:
        params = self._strategy.fetch(self._state).params
        return float(jax.jit(loss_fn)(params, self._teacher.test()))

    def _wait_for_all(self) -> None:
        """Wait until every worker is warm: workers at their own pace have no other way to start together."""
        self._file("ready").touch()
        deadline = time.monotonic() + _READY_SECONDS
        files = [self._file("ready", index) for index in range(self._place.count)]
        while missing := [path.name for path in files if not path.exists()]:
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"still waiting for {', '.join(missing)} after {_READY_SECONDS:g} s")
            time.sleep(0.005)  # nothing announces a file that another process makes

    def _file(self, what: str, index: int | None = None) -> Path:
        return Path(self._settings.directory) / f"{what}-{self._place.index if index is None else index}"


if __name__ == "__main__":
    Worker(WorkerSettings.from_json(sys.argv[1])).work()
