"""A lock that many may share to read, and one at a time holds alone to write."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SharedLock:
    """Readers share it; a writer has it alone, and goes before readers that come after it.

    It may be given back by another thread than the one that took it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._readers = 0
        self._writers_waiting = 0
        self._is_written = False

    def acquire_shared(self) -> None:
        """Wait until nobody writes, or waits to."""
        with self._changed:
            while self._is_written or self._writers_waiting:
                self._changed.wait()
            self._readers += 1

    def release_shared(self) -> None:
        """Read no more."""
        with self._changed:
            self._readers -= 1
            if not self._readers:
                self._changed.notify_all()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold it as a reader."""
        self.acquire_shared()
        try:
            yield
        finally:
            self.release_shared()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold it as the writer."""
        with self._changed:
            self._writers_waiting += 1
            while self._is_written or self._readers:
                self._changed.wait()
            self._writers_waiting -= 1
            self._is_written = True
        try:
            yield
        finally:
            with self._changed:
                self._is_written = False
                self._changed.notify_all()
