"""Output of tasks, on its way to the terminal and to log files: whole lines, labelled and coloured by task; and tables.

A thread of its own writes, with a bounded backlog: a terminal that stands still (Ctrl-S, a pager) holds back the tasks, as it
would without a launcher, but never the launcher itself, which must still notice Ctrl-C.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from stratagem.errors import LaunchError
from stratagem.tools.launch.tasks import TaskName

if TYPE_CHECKING:
    from rich.console import Console

LONGEST_LINE = 1 << 16
"""A line longer than this is shown in pieces."""
BACKLOG_BYTES = 1 << 20
"""With a longer backlog, no more is read from the tasks."""
_TABLE_COLUMNS = 160
_COLOURS = (36, 33, 35, 32, 34, 31, 96, 93, 95, 92, 94, 91)


class LineSplitter:
    """Splits a stream of bytes into lines. Of a line that a progress bar redraws, only the last state counts."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Take more bytes. Return the lines that are complete, without their ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        return [line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines]

    def flush(self) -> list[bytes]:
        """Return the rest at the end of the stream, as a line."""
        return self.feed(b"\n") if self._rest else []


def task_label(task: TaskName, position: int, *, width: int, colour: bool) -> bytes:
    """Return the prefix of each line of a task."""
    text = f"[{task}]".ljust(width + 2)
    if colour:
        text = f"\033[{_COLOURS[position % len(_COLOURS)]}m{text}\033[0m"
    return f"{text} ".encode()


class OutputWriter:
    """Writes to the launcher's own stdout and stderr from a thread, with a bounded backlog."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        """Start the thread, which calls `on_change` when `is_full` or `is_broken` has changed."""
        self._on_change = on_change
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._is_closing = False
        self.is_broken = False  # whether the terminal or the pipe was closed
        self._thread = threading.Thread(target=self._write, name="stratagem-output", daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """Whether to stop reading from the tasks for now."""
        return self._bytes > BACKLOG_BYTES

    def put(self, descriptor: int, data: bytes) -> None:
        """Write `data` to the descriptor (1 or 2) as soon as possible, without blocking the caller."""
        with self._changed:
            self._waiting.append((descriptor, data))
            self._bytes += len(data)
            self._changed.notify()

    def close(self, seconds: float) -> None:
        """Write the backlog, for at most this many seconds."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(seconds)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closing)
                if not self._waiting:
                    return
                descriptor, data = self._waiting.popleft()
            try:
                rest = b"" if self.is_broken else data
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            except OSError:  # the terminal or the pipe is closed: the launcher ends the job
                self.is_broken = True
                self._on_change()
            was_full = self.is_full
            with self._changed:
                self._bytes -= len(data)
            if was_full and not self.is_full:
                self._on_change()


class LogFiles:
    """One file per task with all its output, such as `worker-0.log`; restarts append to it."""

    def __init__(self, directory: Path, tasks: Iterable[TaskName]) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LaunchError(
                f"--log-dir {directory}: {error.strerror}; give a directory that you can write to"
            ) from error
        self._files: dict[TaskName, BinaryIO] = {}
        for task in tasks:
            path = directory / f"{task.job}-{task.index}.log"
            try:
                self._files[task] = path.open("wb", buffering=0)
            except OSError as error:
                raise LaunchError(f"--log-dir: cannot write {path}: {error.strerror}") from error

    def write(self, task: TaskName, lines: list[bytes]) -> str | None:
        """Append lines to the task's file. Return the problem at the first error, after which the file is closed."""
        file = self._files.get(task)
        try:
            if file is not None:
                file.write(b"".join(line + b"\n" for line in lines))
        except OSError as error:
            self._files.pop(task).close()
            return f"the log of {task} ends here: {error.strerror}"
        return None

    def close(self) -> None:
        """Close every file."""
        for file in self._files.values():
            file.close()


def table_console() -> "Console":
    """Return a console for tables: as wide as the terminal; 160 columns in a file or a pipe, where 80 would be too few."""
    from rich.console import Console  # not for `stratagem run`, which has no tables

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _TABLE_COLUMNS)
    return console
