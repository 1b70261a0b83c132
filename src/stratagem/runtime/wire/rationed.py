"""Log lines that strangers can cause: few per second, however many there are."""

import logging
import threading
import time

LOGGER = logging.getLogger("stratagem")


class RationedLog:
    """Warnings, a handful at once, then so many per second; the next one says how many were left out."""

    def __init__(self, burst: int = 20, per_second: float = 1.0) -> None:
        self._burst, self._per_second = burst, per_second
        self._lock = threading.Lock()
        self._allowance = float(burst)
        self._last = time.monotonic()
        self._left_out = 0

    def warning(self, text: str) -> None:
        """Log the text, or count it."""
        with self._lock:
            now = time.monotonic()
            grown = self._allowance + (now - self._last) * self._per_second
            self._allowance, self._last = min(grown, self._burst), now
            if self._allowance < 1:
                self._left_out += 1
                return
            self._allowance -= 1
            left_out, self._left_out = self._left_out, 0
        LOGGER.warning("%s%s", text, f" (and {left_out} more)" if left_out else "")
