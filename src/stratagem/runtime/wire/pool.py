"""Idle connections to one task, kept for the next call; never shared with a forked child."""

import os
import threading
import time

from stratagem.runtime.wire.dialing import Connection

_IDLE_SECONDS = 60.0


class Pool:
    """A stack: the connection used last is used next, so those at the bottom grow old and are closed."""

    def __init__(self) -> None:
        self._process = os.getpid()
        # Taken again by its owner where letting go of an array in the middle of something ends a lease.
        self._lock = threading.RLock()
        self._idle: list[Connection] = []
        self._is_closed = False

    def take(self) -> Connection | None:
        """An idle connection that is still good."""
        self._part_from_parent()
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.channel.is_quiet():
                return connection
            connection.channel.close()

    def give_back(self, connection: Connection) -> None:
        """Keep a connection whose call is over and went well."""
        if self._process != os.getpid():
            connection.channel.close()
            return
        now = time.monotonic()
        connection.idle_since = now
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                self._idle.append(connection)
            dropped = []
            while self._idle and now - self._idle[0].idle_since > _IDLE_SECONDS:
                dropped.append(self._idle.pop(0))
        if is_closed:
            dropped.append(connection)
        for each in dropped:
            each.channel.close()

    def close(self) -> None:
        """Close all that are idle, and from now on all that are given back."""
        self._part_from_parent()
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.channel.close()

    def _part_from_parent(self) -> None:
        """In a forked child: close its copies of the sockets, which leaves the parent's as they are."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        # Another thread of the parent may have held the lock at the fork; nobody here will release it.
        self._lock = threading.RLock()
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.channel.close()
