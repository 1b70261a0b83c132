"""How long to wait on a socket: until a moment, or as long as there is progress."""

import math
import time
from typing import Protocol

from stratagem.errors import DeadlineExceeded


class Patience(Protocol):
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
