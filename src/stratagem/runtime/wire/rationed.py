"""Log lines that strangers can cause: few per second, however many there are."""

import logging
import threading
import time

LOGGER = logging.getLogger("stratagem")


class RationedLog:
    """Warnings, at most one in so many seconds; the next one says how many were left out."""

    def __init__(self, every: float = 1.0) -> None:
        self._every = every
        self._lock = threading.Lock()
        self._next = 0.0
        self._left_out = 0

    def warning(self, text: str) -> None:
        """Log the text, or count it."""
        with self._lock:
            now = time.monotonic()
            if now < self._next:
                self._left_out += 1
                return
            self._next = now + self._every
            left_out, self._left_out = self._left_out, 0
        LOGGER.warning("%s%s", text, f" (and {left_out} more like it)" if left_out else "")
