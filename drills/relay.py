"""The base of relays between tasks: what is sent to a relay's address is passed on to a task, and back."""

import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Relay(ABC):
    """A relay between a task and its callers.

    Args:
        address: The address of the task.

    Attributes:
        address: The address for the callers.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._far = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.start(self._accept)

    def start(self, target: Callable[..., None], *arguments: object) -> None:
        """Run a function in a thread, until its sockets are shut down."""
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    @abstractmethod
    def join(self, near: socket.socket, far: socket.socket) -> None:
        """Begin to pass on what comes from either end of a new connection."""

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
                self.join(near, far)

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
