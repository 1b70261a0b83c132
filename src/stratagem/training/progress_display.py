"""The pace of a training, and its display: a bar in a terminal, or plain lines elsewhere."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

WINDOW_SECONDS = 10.0
"""Speed is measured over this many last seconds."""
DRAW_SECONDS = 0.1
_BAR_WIDTH, _SHORTEST_BAR = 30, 10


class Pace:
    """Counts steps and examples. Pure: callers say what time it is.

    The first step compiles, so speed is measured from its end on.

    Args:
        start: The time now, in seconds of any clock.
        total: The step at which training ends, if that is known.
        resumed_at: The step at which it begins.

    Attributes:
        steps: The number of steps, including those before `resumed_at`.
        seconds: Seconds since `resumed_at`.
        is_over: Whether no more steps will come.

    Example:
        >>> pace = Pace(0.0, total=12)
        >>> for second in (5.0, 6.0, 7.0):
        ...     pace.count(second, examples=100)
        >>> pace.steps_per_second, pace.examples_per_second, pace.seconds_left
        (1.0, 100.0, 9.0)
    """

    def __init__(self, start: float, total: int | None = None, resumed_at: int = 0) -> None:
        self.total = total
        self.resumed_at = resumed_at
        self.steps = resumed_at
        self.seconds = 0.0
        self.is_over = False
        self._start = start
        self._examples = 0
        self._marks: deque[tuple[float, int, int]] = deque()

    def count(self, now: float, examples: int = 0) -> None:
        """Count one more step, of this many examples."""
        self.steps += 1
        self._examples += examples
        self.seconds = now - self._start
        self._marks.append((now, self.steps, self._examples))
        # Speed is measured from the first mark: the youngest that is old enough, so that two remain.
        while len(self._marks) > 2 and now - self._marks[1][0] >= WINDOW_SECONDS:
            self._marks.popleft()

    @property
    def steps_per_second(self) -> float | None:
        """The speed in steps; `None` until two have ended."""
        return self._per_second(1)

    @property
    def examples_per_second(self) -> float | None:
        """The speed in examples; `None` until two steps have ended, or where no examples are counted."""
        return self._per_second(2) if self._examples else None

    @property
    def seconds_left(self) -> float | None:
        """The time left at this speed; `None` if the number of steps is unknown."""
        speed = self.steps_per_second
        if self.total is None or not speed:
            return None
        return max(0, self.total - self.steps) / speed

    def _per_second(self, column: int) -> float | None:
        if len(self._marks) < 2:
            return None
        first, last = self._marks[0], self._marks[-1]
        seconds = last[0] - first[0]
        return (last[column] - first[column]) / seconds if seconds > 0 else None


# Metrics, and the words of a display.


def scalar_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are single numbers, the loss first. Wait for the device.

    Example:
        >>> scalar_metrics({"accuracy": np.float32(0.5), "loss": 2, "spread": np.zeros(3)})
        {'loss': 2.0, 'accuracy': 0.5}
    """
    names = sorted(metrics, key=lambda name: name != "loss")
    return {name: float(np.asarray(metrics[name]).reshape(())) for name in names if _is_number(metrics[name])}


def are_ready(metrics: Mapping[str, Any]) -> bool:
    """Return whether the metrics can be read without waiting for a device."""
    return all(value.is_ready() for value in metrics.values() if hasattr(value, "is_ready"))


def step_text(pace: Pace) -> str:
    """Return the number of steps so far, and in all.

    Example:
        >>> step_text(Pace(0.0, total=600))
        'step 0/600'
    """
    return f"step {pace.steps}" if pace.total is None else f"step {pace.steps}/{pace.total}"


def details_text(pace: Pace, metrics: Mapping[str, float], unit: str = "examples/s") -> str:
    """Return the metrics, the speed and the time left.

    Example:
        >>> pace = Pace(0.0, total=12)
        >>> for second in (5.0, 6.0, 7.0):
        ...     pace.count(second, examples=100)
        >>> details_text(pace, {"loss": 0.25, "global_step": 7.0})
        'loss 0.25, global step 7, 1 steps/s, 100 examples/s, 0:09 left'
    """
    texts = [f"{name.replace('_', ' ')} {_number_text(value)}" for name, value in metrics.items()]
    if pace.steps_per_second is not None:
        texts.append(f"{rate_text(pace.steps_per_second)} steps/s")
    if pace.examples_per_second is not None:
        texts.append(f"{rate_text(pace.examples_per_second)} {unit}")
    if pace.total is not None and (pace.is_over or pace.steps == pace.total):
        since = f"since step {pace.resumed_at}" if pace.resumed_at else "in all"
        texts.append(f"{duration_text(pace.seconds)} {since}")
    elif pace.seconds_left is not None:
        texts.append(f"{duration_text(pace.seconds_left)} left")
    return ", ".join(texts)


def duration_text(seconds: float) -> str:
    """Return a duration in hours, minutes and seconds.

    Example:
        >>> duration_text(9), duration_text(3725)
        ('0:09', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def rate_text(value: float) -> str:
    """Return a rate with three digits, or as a whole number from 10 on."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def _number_text(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def _is_number(value: Any) -> bool:
    array = np.asarray(value)
    return array.size == 1 and (array.dtype.kind in "biuf" or array.dtype.name in ("bfloat16", "float16"))


# Displays.


class ProgressDisplay(ABC):
    """Shows how a pass over the batches goes."""

    may_lag: bool
    """True to show older numbers rather than wait for a device."""

    @abstractmethod
    def begin(self, pace: Pace) -> None:
        """Begin a pass."""

    @abstractmethod
    def is_due(self) -> bool:
        """Return whether to show the state now."""

    @abstractmethod
    def show(self, metrics: Mapping[str, float], workers: Sequence[str]) -> None:
        """Show the state: the pace, these metrics, and a line for each worker."""

    @abstractmethod
    def end(self, metrics: Mapping[str, float], workers: Sequence[str]) -> None:
        """End the pass, showing the last state."""


class PlainLines(ProgressDisplay):
    """Writes a line every `every` steps, and one at the end."""

    may_lag = False

    def __init__(self, file: TextIO, every: int, unit: str) -> None:
        self._file = file
        self._every = every
        self._unit = unit
        self._pace = Pace(0.0)
        self._last = 0

    def begin(self, pace: Pace) -> None:
        self._pace, self._last = pace, pace.steps

    def is_due(self) -> bool:
        return self._pace.steps % self._every == 0

    def show(self, metrics: Mapping[str, float], workers: Sequence[str]) -> None:
        self._last = self._pace.steps
        details = details_text(self._pace, metrics, self._unit)
        lines = [
            f"{step_text(self._pace)}{': ' if details else ''}{details}",
            *(f"  {line}" for line in workers),
        ]
        self._file.write("".join(f"{line}\n" for line in lines))
        self._file.flush()

    def end(self, metrics: Mapping[str, float], workers: Sequence[str]) -> None:
        # Show steps that no line has shown, and correct a last line that announced more steps.
        pace = self._pace
        ended_early = pace.total is not None and pace.resumed_at < pace.steps != pace.total
        if pace.steps > self._last or ended_early:
            self.show(metrics, workers)


class Bar(ProgressDisplay):
    """Draws a bar in a terminal; the script's own output appears above it.

    It is drawn between steps: no thread takes time from the training.
    """

    may_lag = True

    def __init__(self, file: TextIO, unit: str) -> None:
        self._console = Console(file=file)
        self._unit = unit
        self._pace = Pace(0.0)
        self._live: Live | None = None
        self._drawn_at = 0.0

    @staticmethod
    def suits(file: TextIO) -> bool:
        """Return whether this is a terminal that lines can be redrawn on."""
        return file.isatty() and not Console(file=file).is_dumb_terminal

    def begin(self, pace: Pace) -> None:
        self._pace = pace
        self._live = Live(console=self._console, auto_refresh=False)
        self._live.start()
        self._drawn_at = 0.0
        self.show({}, ())

    def is_due(self) -> bool:
        return time.perf_counter() - self._drawn_at >= DRAW_SECONDS

    def show(self, metrics: Mapping[str, float], workers: Sequence[str]) -> None:
        if self._live is None:
            return
        self._drawn_at = time.perf_counter()
        steps, details = step_text(self._pace), details_text(self._pace, metrics, self._unit)
        left = self._console.width - len(steps) - len(details) - 2
        is_narrow = left < _SHORTEST_BAR
        room = self._console.width - len(steps) - 1 if is_narrow else left
        row = Table.grid(padding=(0, 1))
        row.add_column(no_wrap=True, min_width=len(steps))
        row.add_column(width=max(_SHORTEST_BAR, min(_BAR_WIDTH, room)))
        total = self._pace.total
        bar = ProgressBar(total=total or None, completed=self._pace.steps, pulse=total is None)
        row.add_row(Text(steps), bar, *(() if is_narrow else (Text(details, no_wrap=True),)))
        below = [details] if is_narrow else []
        lines = [Text(f"  {line}", no_wrap=True, overflow="ellipsis") for line in (*below, *workers)]
        self._live.update(Group(row, *lines), refresh=True)

    def end(self, metrics: Mapping[str, float], workers: Sequence[str]) -> None:
        if self._live is not None:
            self.show(metrics, workers)
            self._live.stop()
            self._live = None
