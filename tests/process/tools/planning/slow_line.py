"""A slow network in front of a task: so many bytes per second each way, for all connections together.

What it costs is waiting, not computing, so that it is as slow on a busy machine as on an idle one.
"""

import contextlib
import socket
import threading
import time

from drills.relay import Relay

_CHUNK = 32 << 10
_AT_ONCE = 3e-4
"""Seconds: what is received quicker than this had been waiting."""


class _Way:
    """One way of a link: bytes go through it one after the other."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free = 0.0

    def take(self, count: int, ready: float) -> float:
        """Wait until so many bytes have gone through that were ready at a time; when they have, by the plan.

        By the plan: a thread that wakes up late, on a busy machine, does not make the network slower.
        """
        with self._lock:
            self._free = max(self._free, ready) + count / self._rate
            until = self._free
        time.sleep(max(0.0, until - time.monotonic()))  # the network's own time, not a wait for something
        return until


class SlowLine(Relay):
    """A line of so many bytes per second.

    Args:
        address: Of the task.
        rate: Bytes per second, each way.
    """

    def __init__(self, address: str, rate: float) -> None:
        self._there, self._back = _Way(rate), _Way(rate)
        super().__init__(address)

    def join(self, near: socket.socket, far: socket.socket) -> None:
        """See `Relay`."""
        self.start(self._pass_on, near, far, self._there)
        self.start(self._pass_on, far, near, self._back)

    def _pass_on(self, source: socket.socket, other: socket.socket, way: _Way) -> None:
        with contextlib.suppress(OSError):
            sent = 0.0
            while True:
                asked = time.monotonic()
                data = source.recv(_CHUNK)
                if not data:
                    break
                now = time.monotonic()
                sent = way.take(len(data), sent if now - asked < _AT_ONCE else now)
                other.sendall(data)
        for each in (source, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
