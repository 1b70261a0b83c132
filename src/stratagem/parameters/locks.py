"""Locks of the servers, made so that a push which meets nobody else passes them quickly."""

import threading
from collections.abc import Callable


class Changes(threading.Condition):
    """A condition that does nothing to tell of a change where nobody waits for one.

    Attributes:
        lock: What it guards is guarded by this; to hold it is to hold the condition, and quicker.
        also: Called with every change, too; it must return at once.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        super().__init__(self.lock)
        self.also: Callable[[], object] = lambda: None
        self._waiting = 0

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a change; whether there was one in time."""
        self._waiting += 1
        try:
            return super().wait(timeout)
        finally:
            self._waiting -= 1

    def notify_all(self) -> None:
        """Tell all of a change."""
        self.wake()
        self.also()

    def wake(self) -> None:
        """Tell those of a change who wait."""
        if self._waiting:
            super().notify_all()


class SharedLock:
    """A lock that many may share to read, and that a writer, in a `with` statement, has alone.

    A writer goes before readers that come after it. Readers may give it back in another thread than they took it.
    """

    def __init__(self) -> None:
        self._changes = Changes()
        self._readers = 0
        self._writers_waiting = 0
        self._is_written = False

    def acquire_shared(self) -> None:
        """Wait until nobody writes, or waits to."""
        with self._changes.lock:
            while self._is_written or self._writers_waiting:
                self._changes.wait()
            self._readers += 1

    def release_shared(self) -> None:
        """Read no more."""
        with self._changes.lock:
            self._readers -= 1
            if not self._readers:
                self._changes.notify_all()

    def __enter__(self) -> None:
        with self._changes.lock:
            self._writers_waiting += 1
            while self._is_written or self._readers:
                self._changes.wait()
            self._writers_waiting -= 1
            self._is_written = True

    def __exit__(self, *_: object) -> None:
        with self._changes.lock:
            self._is_written = False
            self._changes.notify_all()
