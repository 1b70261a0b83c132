"""A long way in front of a task: what is sent takes its time, and some of it has to be sent again.

To those who use TCP a lost packet is a wait for its retransmission, in which what was sent after it waits too; that
is what this line does with some pieces of what it passes on. Connections that are lost altogether are `BadLine`'s.
"""

import contextlib
import queue
import random
import socket
import time

from drills.relay import Relay

_RETRANSMISSION = 0.2
"""Seconds; the least that Linux waits before it sends a packet again."""


class FarLine(Relay):
    """A line with a delay, and with losses.

    Args:
        address: Of the task.
        delay: Seconds, each way.
        loss: The share of pieces that are lost at first.
        seed: The same seed loses the same pieces of each connection.

    Attributes:
        lost: How many pieces were lost so far.
    """

    def __init__(self, address: str, delay: float, loss: float, seed: int) -> None:
        self._delay, self._loss, self._seed = delay, loss, seed
        self.lost = 0
        super().__init__(address)

    def join(self, near: socket.socket, far: socket.socket) -> None:
        """See `Relay`."""
        for source, other in ((near, far), (far, near)):
            under_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
            self.start(self._take, source, under_way)
            self.start(self._bring, other, under_way)

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
