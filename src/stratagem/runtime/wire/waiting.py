"""Waiting for other tasks: how often the log says for whom, and how long to pause between two attempts."""

import time
from collections.abc import Iterator
from typing import Final

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
