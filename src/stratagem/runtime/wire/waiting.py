"""How long to wait: deadlines, pauses between attempts, and when the log says whom a task waits for."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final

from stratagem.errors import DeadlineExceeded

LOG_EVERY: Final = 5.0
"""Seconds after which the log first says whom a task waits for, and seconds between such lines."""
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.02, 0.5, 1.6


class TimeLimit(ABC):
    """How long socket operations may take.

    Attributes:
        is_constant: Whether each operation may take equally long, so that a socket need be told only once.
    """

    __slots__ = ()
    is_constant = False

    @abstractmethod
    def remaining(self) -> float | None:
        """Return the seconds for the next operation, `None` for no limit; raise `DeadlineExceeded` when time is up."""


class Deadline(TimeLimit):
    """A moment by which a whole operation must be over, however many steps it takes."""

    __slots__ = ("_end", "_start", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start = time.monotonic()
        self._end = self._start + seconds

    def remaining(self) -> float | None:
        if self._end == math.inf:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(f"{self.seconds:g} s are over")
        return left

    def left(self) -> float:
        """Return the seconds left, 0 when the deadline has passed."""
        return max(0.0, self._end - time.monotonic())

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._start


class Stall(TimeLimit):
    """The same number of seconds for each of any number of steps; `None` for no limit."""

    __slots__ = ("_seconds",)
    is_constant = True

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def remaining(self) -> float | None:
        return self._seconds


FOREVER = Stall(None)


def back_off() -> Iterator[float]:
    """Yield the seconds to pause after each attempt: longer and longer, up to half a second."""
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(pause * _GROWTH, _LONGEST_PAUSE)


class WaitingLog:
    """Decides when to log that a task waits: every five seconds, however many threads wait.

    Threads may share one without a lock: at worst two of them log the same line.
    """

    def __init__(self) -> None:
        self._next = 0.0

    def is_due(self, seconds: float) -> bool:
        """Return whether a thread that has waited this long should log it now."""
        if seconds < LOG_EVERY or (now := time.monotonic()) < self._next:
            return False
        self._next = now + LOG_EVERY
        return True
