"""What tasks print, on its way to the terminal and to log files: whole lines, named and coloured by task.

Writing happens in a thread of its own with a bounded backlog, so that a terminal that stands still (Ctrl-S,
a pager) holds the tasks back, as it would without us, but never the launcher: it must still hear Ctrl-C.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from stratagem.errors import LaunchError
from stratagem.tools.launch.task import TaskName

LONGEST_LINE = 1 << 16
"""A line longer than this is shown in pieces."""
BACKLOG_BYTES = 1 << 20
"""When this much waits to be written, no more is read from the tasks."""
_COLOURS = (36, 33, 35, 32, 34, 31, 96, 93, 95, 92, 94, 91)


class Lines:
    """Cuts a stream of bytes into lines. A progress bar that redraws its line counts as its last state."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Take what was read; return the lines that are complete, without their ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        return [line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines]

    def flush(self) -> list[bytes]:
        """The end of the stream: what is left is a line too."""
        return self.feed(b"\n") if self._rest else []


def label(task: TaskName, position: int, *, width: int, colour: bool) -> bytes:
    """What stands before each line of a task."""
    text = f"[{task}]".ljust(width + 2)
    if colour:
        text = f"\033[{_COLOURS[position % len(_COLOURS)]}m{text}\033[0m"
    return f"{text} ".encode()


class Writer:
    """Writes to the launcher's own stdout and stderr from a thread, with a bounded backlog."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """Start the thread; `changed` is called from it when `full` or `broken` has changed."""
        self._tell = changed
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self.broken = False
        self._thread = threading.Thread(target=self._write, name="stratagem-output", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether to stop reading from the tasks for now."""
        return self._bytes > BACKLOG_BYTES

    def put(self, descriptor: int, data: bytes) -> None:
        """Write `data` to the descriptor (1 or 2) when it can be written; never blocks."""
        with self._changed:
            self._waiting.append((descriptor, data))
            self._bytes += len(data)
            self._changed.notify()

    def close(self, seconds: float) -> None:
        """Write what is waiting, for at most this long."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                descriptor, data = self._waiting.popleft()
            try:
                rest = b"" if self.broken else data
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            except OSError:  # the terminal or the pipe is gone; the launcher is told and ends all
                self.broken = True
                self._tell()
            was_full = self.full
            with self._changed:
                self._bytes -= len(data)
            if was_full and not self.full:
                self._tell()


class LogFiles:
    """One file per task with all that it printed, `worker-0.log`; restarts append to it."""

    def __init__(self, directory: Path, tasks: Iterable[TaskName]) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LaunchError(
                f"--log-dir {directory}: {error.strerror}; give a directory that can be written"
            ) from error
        self._files: dict[TaskName, BinaryIO] = {}
        for task in tasks:
            path = directory / f"{task.job}-{task.index}.log"
            try:
                self._files[task] = path.open("wb", buffering=0)
            except OSError as error:
                raise LaunchError(f"--log-dir: cannot write {path}: {error.strerror}") from error

    def write(self, task: TaskName, lines: list[bytes]) -> str | None:
        """Append lines to the task's file; what went wrong, the first time that it does."""
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
