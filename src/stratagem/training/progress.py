"""`progress`: batches as they are trained on, and a bar in a terminal, or lines elsewhere, on how that goes."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, Literal, TextIO

from stratagem.engines.rows import count_rows
from stratagem.errors import DataError, StratagemError
from stratagem.training.bar import Bar
from stratagem.training.lines import PlainLines
from stratagem.training.one_voice import HasChief, speaks, trains_with_others
from stratagem.training.pace import Pace
from stratagem.training.standing import Status, are_ready, numbers, worker_lines

Display = Literal["auto", "bar", "lines", "off"]
_ASK_SECONDS = 2.0


class Progress:
    """Batches, and how their training goes; `progress` makes it.

    Each pass over the batches counts anew. The display ends with the loop, however that ends.

    Attributes:
        pace: Steps, seconds and speed of this pass.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        total: int | None,
        examples: int | None,
        display: PlainLines | Bar | None,
        ask: Callable[[], Status] | None = None,
        resumed_at: int = 0,
    ) -> None:
        self._batches = batches
        self._total = total
        self._resumed_at = resumed_at
        self._examples = examples
        self._display = display
        self._ask = ask
        self._asked_at = 0.0
        self._status: Status | None = None
        self._rows = 0
        self._is_counted = True
        self._told: Mapping[str, Any] = {}
        self._workers: list[str] = []
        self._shown: dict[str, float] = {}
        self.pace = Pace(time.perf_counter(), total, resumed_at)

    @property
    def examples_per_second(self) -> float | None:
        """The speed of this process over the last seconds; `None` until two steps have ended."""
        return self.pace.examples_per_second

    def __iter__(self) -> Iterator[Any]:
        self.pace = Pace(time.perf_counter(), self._total, self._resumed_at)
        self._told, self._workers, self._shown = {}, [], {}
        if self._display is not None:
            self._display.begin(self.pace)
        is_whole = False
        try:
            for batch in self._batches:
                self._rows = _rows(batch) if self._examples is None else self._examples
                self._is_counted = False
                yield batch
                self._count()
            is_whole = True
        finally:
            self._is_counted = True
            self.pace.is_over = True
            if self._display is not None:
                if is_whole or are_ready(self._told):  # after an error a device may never be
                    self._read()
                self._display.end(self._shown, self._workers)

    def tell(self, metrics: Mapping[str, Any], *, status: Mapping[str, Any] | None = None) -> None:
        """Tell how this step went; what is shown of it is read when it is shown.

        Args:
            metrics: What the step returned.
            status: What `session.status()` returned: then there is a line per worker too. A progress that was given its
                strategy asks by itself.
        """
        self._told = metrics
        if status is not None:
            self._tell_of_workers(status)
        self._count()

    def _tell_of_workers(self, status: Status) -> None:
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
            self._ask_servers()
        if is_due:
            if not self._display.is_hasty or are_ready(self._told):
                self._read()
            self._display.show(self._shown, self._workers)

    def _ask_servers(self) -> None:
        if self._ask is not None and time.perf_counter() - self._asked_at >= _ASK_SECONDS:
            self._tell_of_workers(self._ask())
            self._asked_at = time.perf_counter()

    def _read(self) -> None:
        """Take the numbers out of the metrics; waits for the device."""
        self._shown = numbers(self._told)


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
    """Batches to loop over, and a display of how it goes: step, metrics, speed, time left.

    In a terminal that is a bar, elsewhere (in a file, under `stratagem run`) a line every so many steps. The same
    script may run on every worker: only the chief shows anything.

    Args:
        batches: What to loop over, such as `strategy.distribute(...)` returns.
        total: The step that the training ends at, if the number of batches does not tell: then the time left is shown.
        resumed_at: The step that a training goes on from, `int(state.step)` after a restore: steps are counted from there.
        every: A line every so many steps. A bar keeps its own pace.
        examples: How many examples each step trains in all; else the rows that come to this worker are counted.
        strategy: Tells who is chief; without it flags and the environment do. With parameter servers there is a line
            for each worker then, with its speed.
        display: `auto`, or `bar`, `lines` or `off`.
        file: Where to write; standard output by default.

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
    if display == "off" or not speaks(strategy):
        return Progress(batches, total, examples, None, resumed_at=resumed_at)
    ask = getattr(strategy, "status", None)
    target = sys.stdout if file is None else file
    unit = "examples/s here" if examples is None and trains_with_others() else "examples/s"
    draws = display == "bar" or (display == "auto" and Bar.suits(target))
    shown = Bar(target, unit) if draws else PlainLines(target, every, unit)
    return Progress(batches, total, examples, shown, ask, resumed_at)


def _rows(batch: Any) -> int:
    try:
        return count_rows(batch)
    except (StratagemError, ValueError, TypeError, IndexError):
        return 0  # what has no rows is counted in steps alone
