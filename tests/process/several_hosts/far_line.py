"""A long way in front of a task: what is sent takes its time, and some of it has to be sent again.

To those who use TCP a lost packet is a wait for its retransmission, in which what was sent after it waits too; that
is what this line does with some pieces of what it passes on. Connections that are lost altogether are `BadLine`'s.
"""

import contextlib
import queue
import random
import socket
import threading
import time
from types import TracebackType
from typing import Self

_RETRANSMISSION = 0.2
"""Seconds; the least that Linux waits before it sends a packet again."""


class FarLine:
    """Stands between a task and those who call it.

    Args:
        address: Of the task.
        delay: Seconds, each way.
        loss: The share of pieces that are lost at first.
        seed: The same seed loses the same pieces of each connection.

    Attributes:
        address: What callers are told instead.
        lost: How many pieces were lost so far.
    """

    def __init__(self, address: str, delay: float, loss: float, seed: int) -> None:
        host, _, port = address.rpartition(":")
        self._far = (host, int(port))
        self._delay, self._loss, self._seed = delay, loss, seed
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.lost = 0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._far)
                except OSError:
                    near.close()
                    continue
                for each in (near, far):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += (near, far)
                for source, other in ((near, far), (far, near)):
                    under_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                    self._start(self._take, source, under_way)
                    self._start(self._bring, other, under_way)

    def _take(self, source: socket.socket, under_way: "queue.SimpleQueue[tuple[float, bytes]]") -> None:
        chance = random.Random(self._seed)
        data = b"x"
        while data:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            is_lost = chance.random() < self._loss
            self.lost += is_lost
            under_way.put((time.monotonic() + self._delay + _RETRANSMISSION * is_lost, data))

    def _bring(self, other: socket.socket, under_way: "queue.SimpleQueue[tuple[float, bytes]]") -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = under_way.get()
                time.sleep(
                    max(0.0, due - time.monotonic())
                )  # the network's own time, not a wait for something
                if not data:
                    break
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for each in (self._listener, *self._sockets):
            each.close()
