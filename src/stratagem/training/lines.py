"""Progress as plain lines: one every so many steps, and one at the end."""

from collections.abc import Mapping, Sequence
from typing import TextIO

from stratagem.training.pace import Pace
from stratagem.training.standing import count, details


class PlainLines:
    """Writes lines.

    Args:
        file: Where to.
        every: After how many steps each.
        unit: What speed is told in.
    """

    is_hasty = False

    def __init__(self, file: TextIO, every: int, unit: str) -> None:
        self._file = file
        self._every = every
        self._unit = unit
        self._pace = Pace(0.0)
        self._last = 0

    def begin(self, pace: Pace) -> None:
        """A pass begins."""
        self._pace, self._last = pace, pace.steps

    def is_due(self) -> bool:
        """Whether to write a line now."""
        return self._pace.steps % self._every == 0

    def show(self, metrics: Mapping[str, float], workers: Sequence[str]) -> None:
        """Write a line, and one for each worker that something is known of."""
        self._last = self._pace.steps
        told = details(self._pace, metrics, self._unit)
        lines = [f"{count(self._pace)}{': ' if told else ''}{told}", *(f"  {line}" for line in workers)]
        self._file.write("".join(f"{line}\n" for line in lines))
        self._file.flush()

    def end(self, metrics: Mapping[str, float], workers: Sequence[str]) -> None:
        """The pass is over: write of the steps that no line has told of, and correct a line that told of more to come."""
        pace = self._pace
        has_more = pace.total is not None and pace.resumed_at < pace.steps != pace.total
        if pace.steps > self._last or has_more:
            self.show(metrics, workers)
