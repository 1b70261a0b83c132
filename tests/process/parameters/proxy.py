"""A line between tasks that turns bad: it then breaks each connection after a random number of bytes."""

import contextlib
import random
import selectors
import socket
import struct
import threading
from types import TracebackType
from typing import Self

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close means reset, and what was under way is lost


class BadLine:
    """Stands between a task and those who call it.

    Args:
        address: Of the task.
        seed: The same seed breaks after the same numbers of bytes.
        least: Bytes that every connection passes on while the line is bad, of both directions together.
        most: Bytes after which every connection is broken then.

    Attributes:
        address: What callers are told instead.
        broken: How many connections were broken so far.
    """

    def __init__(self, address: str, seed: int, least: int, most: int) -> None:
        host, _, port = address.rpartition(":")
        self._far = (host, int(port))
        self._random = random.Random(seed)
        self._range = (least, most)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.broken = 0
        self._is_bad = threading.Event()
        self._closing, self._wake = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._closing, selectors.EVENT_READ)
        self._others: dict[socket.socket, socket.socket] = {}
        self._left: dict[socket.socket, list[int]] = {}
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def turn_bad(self) -> None:
        """Break connections from now on."""
        self._is_bad.set()

    def heal(self) -> None:
        """Break nothing from now on."""
        self._is_bad.clear()

    def _pass_on(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._closing:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._others:
                    assert isinstance(key.fileobj, socket.socket)
                    self._pass(key.fileobj)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(self._far)
        except OSError:
            near.close()
            return
        self._others |= {near: far, far: near}
        budget = [self._random.randint(*self._range)]  # of both directions
        for sock in (near, far):
            self._left[sock] = budget
            self._selector.register(sock, selectors.EVENT_READ)

    def _pass(self, source: socket.socket) -> None:
        other, budget = self._others[source], self._left[source]
        try:
            data = source.recv(65536)
            if self._is_bad.is_set():
                data = data[: budget[0]]
                budget[0] -= len(data)
            other.sendall(data)
        except OSError:
            data = b""
        if not data or (budget[0] <= 0 and self._is_bad.is_set()):
            self.broken += budget[0] <= 0
            self._drop(source)

    def _drop(self, sock: socket.socket) -> None:
        for each in (sock, self._others[sock]):
            self._selector.unregister(each)
            del self._others[each], self._left[each]
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wake.close()
        self._thread.join()
        for sock in list(self._others):
            if sock in self._others:
                self._drop(sock)
        self._listener.close()
        self._closing.close()
        self._selector.close()
