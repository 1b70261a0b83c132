"""What a listener has done so far, for its status."""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Snapshot:
    """Counts at one moment.

    Attributes:
        seconds: Since the listener was made.
        calls: Calls answered, by name.
        failures: Calls answered with an error.
        bytes_in: Bytes of all requests, shared memory included.
        bytes_out: Bytes of all replies, shared memory included.
        connections: Authenticated connections now.
        strangers: Connections now that are not authenticated yet.
        accepted: Authenticated connections so far.
        refused: Connections that were turned away so far.
        last_error: The last thing that went wrong, as one line.
    """

    seconds: float
    calls: dict[str, int]
    failures: int
    bytes_in: int
    bytes_out: int
    connections: int
    strangers: int
    accepted: int
    refused: int
    last_error: str | None


@dataclass
class Counters:
    """Counts, from many threads."""

    started: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _calls: Counter[str] = field(default_factory=Counter)
    _failures: int = 0
    _bytes_in: int = 0
    _bytes_out: int = 0
    _accepted: int = 0
    _refused: int = 0
    _last_error: str | None = None

    def call(self, name: str, bytes_in: int, bytes_out: int, error: str | None = None) -> None:
        """A call was answered."""
        with self._lock:
            self._calls[name] += 1
            self._bytes_in += bytes_in
            self._bytes_out += bytes_out
            if error is not None:
                self._failures += 1
                self._last_error = f"{name}: {error}"

    def failed(self, name: str, error: str) -> None:
        """Something went wrong in a call that was answered before."""
        with self._lock:
            self._failures += 1
            self._last_error = f"{name}: {error}"

    def accepted(self) -> None:
        """A connection was authenticated."""
        with self._lock:
            self._accepted += 1

    def refused(self, why: str) -> None:
        """A connection was turned away."""
        with self._lock:
            self._refused += 1
            self._last_error = why

    def snapshot(self, connections: int, strangers: int) -> Snapshot:
        """The counts now."""
        with self._lock:
            return Snapshot(
                seconds=time.monotonic() - self.started,
                calls=dict(self._calls),
                failures=self._failures,
                bytes_in=self._bytes_in,
                bytes_out=self._bytes_out,
                connections=connections,
                strangers=strangers,
                accepted=self._accepted,
                refused=self._refused,
                last_error=self._last_error,
            )
