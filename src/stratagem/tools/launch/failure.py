"""Finds the first failure among many: the one to read, before those that only followed from it.

A task that raised may take its time to exit, and its neighbours may notice and exit before it. So a failure
is dated by the moment its traceback began to arrive, not by the exit.
"""

from collections import deque
from dataclasses import dataclass

from stratagem.tools.launch.task import TaskName, describe_exit

MOST_LINES = 200
LAST_WORDS = 20
"""How many lines to show of a task that died without a traceback."""
FRESH_SECONDS = 5.0
"""A traceback older than this at the end of a task was handled, and is not why it ended."""
_BEGIN = b"Traceback (most recent call last):"
_LINKS = (b"During handling of the above exception", b"The above exception was the direct cause")


class LastWords:
    """Keeps the end of what a task wrote to stderr: its last traceback, or else its last lines."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=MOST_LINES)
        self._linked = False
        self.began: float | None = None

    def feed(self, line: bytes, now: float) -> None:
        """Take one line; `began` becomes the time at which the last traceback began."""
        if line.startswith(_BEGIN) and not self._linked:
            self._lines.clear()
            self.began = now
        if line.strip():
            self._linked = line.startswith(_LINKS)
        self._lines.append(line)

    def failed_at(self, now: float) -> float:
        """When the task failed that has ended now: when its traceback began, unless it went on after that."""
        if self.began is not None and now - self.began > FRESH_SECONDS:
            self.began = None
        return now if self.began is None else self.began

    def text(self) -> str:
        """The traceback, or the last lines."""
        lines = list(self._lines) if self.began is not None else list(self._lines)[-LAST_WORDS:]
        return b"\n".join(lines).decode(errors="replace").rstrip()


@dataclass(frozen=True)
class Failure:
    """One task's failure.

    Attributes:
        task: Who failed.
        code: Its exit code; negative for a signal.
        time: When its traceback began, or when it exited where there is none.
        text: Its last words.
    """

    task: TaskName
    code: int
    time: float
    text: str


def report(failures: list[Failure]) -> str:
    """The first failure with its traceback, then the others by name.

    Example:
        >>> print(report([Failure(TaskName("worker", 1), 1, 0.0, "ValueError: no")]))
        worker:1 failed, with exit code 1:
          ValueError: no
    """
    first, *others = sorted(failures, key=lambda failure: failure.time)
    lines = [f"{first.task} failed{' first' if others else ''}, with {describe_exit(first.code)}:"]
    lines += [f"  {line}".rstrip() for line in (first.text or "(it wrote nothing to stderr)").splitlines()]
    lines += [f"then {other.task} failed, with {describe_exit(other.code)}" for other in others]
    return "\n".join(lines)
