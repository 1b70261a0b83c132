"""`progress`: batches to train on, with a display of how training goes: a bar in a terminal, lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, Literal, TextIO, TypeAlias

from stratagem.engines.rows import count_rows
from stratagem.errors import DataError, StratagemError
from stratagem.training.cluster_status import Status, worker_lines
from stratagem.training.progress_display import (
    Bar,
    Pace,
    PlainLines,
    ProgressDisplay,
    are_ready,
    scalar_metrics,
)
from stratagem.training.reporter import HasChief, has_other_workers, is_reporter

Display: TypeAlias = Literal["auto", "bar", "lines", "off"]
_STATUS_SECONDS = 2.0
"""Seconds between two requests for the servers' status."""


class Progress:
    """Batches, with a display of how training on them goes; `progress` returns it.

    Each pass over the batches counts anew. The display ends with the loop, however that ends.

    Attributes:
        pace: Steps, seconds and speed of this pass.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        total: int | None,
        examples: int | None,
        display: ProgressDisplay | None,
        get_status: Callable[[], Status] | None = None,
        resumed_at: int = 0,
    ) -> None:
        self._batches = batches
        self._total = total
        self._resumed_at = resumed_at
        self._examples = examples
        self._display = display
        self._get_status = get_status
        self._status_at = 0.0
        self._status: Status | None = None
        self._rows = 0
        self._is_counted = True
        self._metrics: Mapping[str, Any] = {}
        self._workers: list[str] = []
        self._shown: dict[str, float] = {}
        self.pace = Pace(time.perf_counter(), total, resumed_at)

    @property
    def examples_per_second(self) -> float | None:
        """The speed of this process over the last seconds; `None` until two steps have ended."""
        return self.pace.examples_per_second

    def __iter__(self) -> Iterator[Any]:
        self.pace = Pace(time.perf_counter(), self._total, self._resumed_at)
        self._metrics, self._workers, self._shown = {}, [], {}
        if self._display is not None:
            self._display.begin(self.pace)
        is_complete = False
        try:
            for batch in self._batches:
                self._rows = _rows(batch) if self._examples is None else self._examples
                self._is_counted = False
                yield batch
                self._count()
            is_complete = True
        finally:
            self._is_counted = True
            self.pace.is_over = True
            if self._display is not None:
                if is_complete or are_ready(self._metrics):  # after an error a device may never be
                    self._read_metrics()
                self._display.end(self._shown, self._workers)

    def tell(self, metrics: Mapping[str, Any], *, status: Mapping[str, Any] | None = None) -> None:
        """Record the metrics of this step. They are read only when they are shown.

        Args:
            metrics: The metrics that the step returned.
            status: The status that `session.status()` returned, to show a line for each worker. A progress that was
                given its strategy asks for the status by itself.
        """
        self._metrics = metrics
        if status is not None:
            self._set_status(status)
        self._count()

    def _set_status(self, status: Status) -> None:
        self._workers = worker_lines(status, self._status)
        self._status = status

    def _count(self) -> None:
        if self._is_counted:
            return
        self._is_counted = True
        self.pace.count(time.perf_counter(), self._rows)
        if self._display is None:
            return
        is_due = self._display.is_due()
        if is_due or self.pace.steps == self._resumed_at + 1:  # speeds are since the first step
            self._request_status()
        if is_due:
            if not self._display.may_lag or are_ready(self._metrics):
                self._read_metrics()
            self._display.show(self._shown, self._workers)

    def _request_status(self) -> None:
        if self._get_status is not None and time.perf_counter() - self._status_at >= _STATUS_SECONDS:
            self._set_status(self._get_status())
            self._status_at = time.perf_counter()

    def _read_metrics(self) -> None:
        """Read the numbers of the metrics. Wait for the device."""
        self._shown = scalar_metrics(self._metrics)


def progress(
    batches: Iterable[Any],
    total: int | None = None,
    *,
    resumed_at: int = 0,
    every: int = 100,
    examples: int | None = None,
    strategy: HasChief | None = None,
    display: Display = "auto",
    file: TextIO | None = None,
) -> Progress:
    """Return the batches, to loop over with a display of how training goes: step, metrics, speed, time left.

    The display is a bar in a terminal, and elsewhere (in a file, under `stratagem run`) a line at regular steps. The
    same script may run on every worker: only the chief shows anything.

    Args:
        batches: The batches to loop over, such as `strategy.distribute(...)` returns.
        total: The step at which training ends, to show the time left. By default, it follows from `len(batches)`.
        resumed_at: The step that training goes on from, `int(state.step)` after a restore. Steps count from there.
        every: Steps between lines. A bar ignores it.
        examples: The number of examples that each step trains in all. By default, this worker's rows are counted.
        strategy: Says who is chief. By default, flags and the environment do. With the strategy of parameter servers, a
            line for each worker shows its speed.
        display: `auto`, `bar`, `lines` or `off`.
        file: Where to write. By default, standard output.

    Example:
        >>> steps = progress(range(4), every=2)
        >>> for batch in steps:
        ...     steps.tell({"loss": 1 / (1 + batch)})  # doctest: +ELLIPSIS
        step 2/4: loss 0.5, ...
        step 4/4: loss 0.25, ...
    """
    if display not in ("auto", "bar", "lines", "off"):
        raise DataError(f"display is {display!r}; give 'auto', 'bar', 'lines' or 'off'")
    for name, value in {
        "total": total,
        "resumed_at": resumed_at,
        "every": every,
        "examples": examples,
    }.items():
        least = 0 if name != "every" else 1
        if value is not None and (not isinstance(value, int) or value < least):
            raise DataError(f"{name} is {value!r}; give a whole number of at least {least}")
    if total is None and isinstance(batches, Sized):
        total = resumed_at + len(batches)
    if display == "off" or not is_reporter(strategy):
        return Progress(batches, total, examples, None, resumed_at=resumed_at)
    target = sys.stdout if file is None else file
    unit = "examples/s here" if examples is None and has_other_workers() else "examples/s"
    wants_bar = display == "bar" or (display == "auto" and Bar.suits(target))
    shown = Bar(target, unit) if wants_bar else PlainLines(target, every, unit)
    return Progress(batches, total, examples, shown, getattr(strategy, "status", None), resumed_at)


def _rows(batch: Any) -> int:
    try:
        return count_rows(batch)
    except (StratagemError, ValueError, TypeError, IndexError):
        return 0  # batches without rows are counted in steps alone
