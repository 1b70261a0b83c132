"""What every worker of a contender runs: the same model on the same examples, for the same time, under its strategy.

python -m stratagem.tools.bench.job SETTINGS
"""

import itertools
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

from stratagem.errors import DeadlineExceeded
from stratagem.parameters.rules import Async, BoundedStaleness, Sync
from stratagem.strategies import (
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    ParameterServerStrategy,
    Strategy,
)
from stratagem.tools.bench.contenders import STALENESS_BOUND
from stratagem.tools.bench.results import WorkerReport
from stratagem.tools.bench.settings import JobSettings
from stratagem.tools.bench.teacher import Teacher, first_parameters

LEARNING_RATE = 0.05
_FIRST_STEPS = 3
"""Before the clock starts: the first is compiled, the next find out what is worth keeping."""
_POINTS = 25
"""Of a curve, about."""
_MEETING_SECONDS = 300.0


def strategy_of(name: str) -> Strategy:
    """The strategy of such a name among `contenders.KINDS`."""
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
    """Mean softmax cross-entropy of a dense network with ReLU."""
    values, labels = batch
    *hidden, (matrix, vector) = params
    for weights, bias in hidden:
        values = jax.nn.relu(values @ weights + bias)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(values @ matrix + vector, labels))


class Worker:
    """One worker: its strategy, its model and its batches.

    Args:
        settings: What to do.
    """

    def __init__(self, settings: JobSettings) -> None:
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
        """Train for the time that was asked for, and leave a report."""
        self._train(_FIRST_STEPS)
        self._staleness.clear()
        self._meet()
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

    def _train_for(self, wanted: float) -> tuple[int, float, list[tuple[float, float]]]:
        """Train in short runs. Workers in step agree after each on the time, so that all end with the same step."""
        steps, run, seconds = 0, 1, 0.0
        curve: list[tuple[float, float]] = []
        began = time.perf_counter()
        while seconds < wanted:
            before, loss = seconds, self._train(run)
            steps += run
            now = time.perf_counter() - began
            seconds = float(self._strategy.reduce("mean", now))
            curve.append(((before + seconds) / 2, loss))
            run = max(1, int(steps / seconds * wanted / _POINTS))
        return steps, time.perf_counter() - began, curve

    def _train(self, steps: int) -> float:
        """So many steps, to their end; the mean loss of them."""
        told = []
        for batch in itertools.islice(self._feed, steps):
            if self._pause:
                time.sleep(self._pause)
            self._state, metrics = self._step(self._state, batch)
            told.append(metrics)
            if "staleness" in metrics:
                self._staleness[int(metrics["staleness"])] += 1
        jax.block_until_ready(self._state)
        return float(sum(float(metrics["loss"]) for metrics in told) / len(told))

    def _test(self) -> float:
        params = self._strategy.fetch(self._state).params
        return float(jax.jit(loss_fn)(params, self._teacher.test()))

    def _meet(self) -> None:
        """Wait until every worker is warm: those who go at their own pace have no other way to start together."""
        self._file("ready").touch()
        deadline = time.monotonic() + _MEETING_SECONDS
        others = [self._file("ready", index) for index in range(self._place.count)]
        while missing := [path.name for path in others if not path.exists()]:
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"still waiting for {', '.join(missing)} after {_MEETING_SECONDS:g} s")
            time.sleep(0.005)  # a file that others make gives no sign of itself

    def _file(self, what: str, index: int | None = None) -> Path:
        return Path(self._settings.directory) / f"{what}-{self._place.index if index is None else index}"


if __name__ == "__main__":
    Worker(JobSettings.from_json(sys.argv[1])).work()
