"""How long to wait on a socket: until a moment, or as long as there is progress.

Waiting for other tasks: how often the log says for whom, and how long to pause between two attempts.
"""

import math
import time
from collections.abc import Iterator
from typing import Final, Protocol

from stratagem.errors import DeadlineExceeded


class TimeLimit(Protocol):
    """Tells before each socket operation how long it may take."""

    def remaining(self) -> float | None:
        """Seconds for the next operation, `None` without limit; raises `DeadlineExceeded` when over."""


class Deadline:
    """A moment by which a whole operation must be over, however many steps it takes."""

    __slots__ = ("_end", "_start", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start = time.monotonic()
        self._end = self._start + seconds

    def remaining(self) -> float | None:
        """Seconds left, `None` without limit; raises `DeadlineExceeded` when there are none."""
        if self._end == math.inf:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(f"{self.seconds:g} s are over")
        return left

    def left(self) -> float:
        """Seconds left, 0 when over."""
        return max(0.0, self._end - time.monotonic())

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start


class Stall:
    """Any number of steps, each of which may take so long; `None` is for ever."""

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def remaining(self) -> float | None:
        """Seconds for the next step."""
        return self._seconds


FOREVER = Stall(None)


LOG_EVERY: Final = 5.0
"""Seconds after which the log says whom a task waits for, and then again and again."""
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.02, 0.5, 1.6


def back_off() -> Iterator[float]:
    """Seconds to pause after each attempt: longer and longer, up to half a second."""
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(pause * _GROWTH, _LONGEST_PAUSE)


class WaitingLog:
    """Tells when to log that a task waits: every five seconds, however many threads wait.

    Threads may share one without a lock: at worst two of them log the same.
    """

    def __init__(self) -> None:
        self._next = 0.0

    def is_due(self, seconds: float) -> bool:
        """Whether whoever has waited for so long is to say so now."""
        if seconds < LOG_EVERY or (now := time.monotonic()) < self._next:
            return False
        self._next = now + LOG_EVERY
        return True
