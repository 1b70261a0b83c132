"""What is written for TensorBoard along a training and after an evaluation, by the one process that writes."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratagem.errors import MissingExtra
from stratagem.strategies import Strategy
from stratagem.training import SummaryWriter
from stratagem.training.standing import numbers

_log = logging.getLogger("stratagem")


class TrainingSummaries:
    """Writes the metrics and the speed of a training every so many steps.

    Args:
        directory: Where to.
        every: Steps from summary to summary; `None` for none.
        strategy: Tells who is chief.
        step: Where the training begins.
    """

    def __init__(self, directory: Path, every: int | None, strategy: Strategy, step: int) -> None:
        self._every = every
        self._writer = _writer(directory, strategy, step) if every is not None and strategy.is_chief else None
        self._last = step
        self._since = time.perf_counter()

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """A step is done."""
        if self._writer is None or self._every is None or step - self._last < self._every:
            return
        now = time.perf_counter()
        for name, value in numbers(metrics).items():
            if name != "global_step":
                self._writer.scalar(name, value, step)
        self._writer.scalar("global_step/sec", (step - self._last) / max(now - self._since, 1e-9), step)
        self._last, self._since = step, now

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


def write_evaluation(model_dir: Path, name: str | None, metrics: Mapping[str, float], step: int) -> None:
    """Write the results of an evaluation, to a directory of their own; only the chief and the evaluator do."""
    writer = _writer(model_dir / ("eval" if name is None else f"eval_{name}"), None, None)
    if writer is not None:
        with writer:
            for metric, value in metrics.items():
                writer.scalar(metric, value, step)


def _writer(directory: Path, strategy: Strategy | None, step: int | None) -> SummaryWriter | None:
    try:
        return SummaryWriter(directory, strategy, resumed_at=step)
    except MissingExtra as error:
        _log.warning("there will be no summaries: %s", error)
        return None
