"""Progress as a bar in a terminal, drawn between steps: no thread takes time from the training."""

import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stratagem.training.pace import Pace
from stratagem.training.standing import count, details

DRAW_SECONDS = 0.1
_BAR_WIDTH, _SHORTEST_BAR = 30, 10


class Bar:
    """Draws a bar; what the script prints meanwhile appears above it.

    Args:
        file: The terminal.
        unit: What speed is told in.
    """

    is_hasty = True
    """Draws often: better an older number than to wait for a device."""

    def __init__(self, file: TextIO, unit: str) -> None:
        self._console = Console(file=file)
        self._unit = unit
        self._pace = Pace(0.0)
        self._live: Live | None = None
        self._drawn = 0.0

    @staticmethod
    def suits(file: TextIO) -> bool:
        """Whether this is a terminal that lines can be redrawn on."""
        return file.isatty() and not Console(file=file).is_dumb_terminal

    def begin(self, pace: Pace) -> None:
        """A pass begins."""
        self._pace = pace
        self._live = Live(console=self._console, auto_refresh=False)
        self._live.start()
        self._drawn = 0.0
        self.show({}, ())

    def is_due(self) -> bool:
        """Whether to draw now."""
        return time.perf_counter() - self._drawn >= DRAW_SECONDS

    def show(self, metrics: Mapping[str, float], workers: Sequence[str]) -> None:
        """Draw it."""
        if self._live is None:
            return
        self._drawn = time.perf_counter()
        counted, told = count(self._pace), details(self._pace, metrics, self._unit)
        left = self._console.width - len(counted) - len(told) - 2
        is_narrow = left < _SHORTEST_BAR
        width = max(
            _SHORTEST_BAR, min(_BAR_WIDTH, self._console.width - len(counted) - 1 if is_narrow else left)
        )
        row = Table.grid(padding=(0, 1))
        row.add_column(no_wrap=True, min_width=len(counted))
        row.add_column(width=width)
        total = self._pace.total
        bar = ProgressBar(total=total or None, completed=self._pace.steps, pulse=total is None)
        row.add_row(Text(counted), bar, *(() if is_narrow else (Text(told, no_wrap=True),)))
        below = [told] if is_narrow else []
        lines = [Text(f"  {line}", no_wrap=True, overflow="ellipsis") for line in (*below, *workers)]
        self._live.update(Group(row, *lines), refresh=True)

    def end(self, metrics: Mapping[str, float], workers: Sequence[str]) -> None:
        """The pass is over: what was drawn last stays."""
        if self._live is not None:
            self.show(metrics, workers)
            self._live.stop()
            self._live = None
