"""A contender's process: how it talks to the harness, in single lines over a socket of the harness.

It sends its index, then `ready`, or `skip` and a reason. After that it carries out commands, line by line, until the harness
closes the connection.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from typing import TypeVar

SOCKET = "BENCHMARK_SOCKET"
"""Names the variable that tells where the harness listens."""
_DIE_WITH_PARENT = 1
T = TypeVar("T")


class Absent(Exception):
    """A contender cannot take part here; the message says why."""


class Conversation:
    """One process's side of the conversation with the harness.

    Args:
        index: The index of this process in its contender.
    """

    def __init__(self, index: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.environ[SOCKET])
        self._received = b""
        self.say(f"hello {index}")

    def say(self, line: str) -> None:
        """Send the harness a line."""
        # Who does not listen any more has what it wants.
        with contextlib.suppress(BrokenPipeError):
            self._socket.sendall(f"{line}\n".encode())

    def has_news(self) -> bool:
        """Return whether the harness has sent a line that was not read yet."""
        return b"\n" in self._received or bool(select.select([self._socket], [], [], 0)[0])

    def lines(self) -> Iterator[str]:
        """Yield the lines of the harness until it closes the connection."""
        while True:
            while b"\n" not in self._received:
                more = self._socket.recv(4096)
                if not more:
                    return
                self._received += more
            line, _, self._received = self._received.partition(b"\n")
            yield line.decode()


def end_with_harness() -> None:
    """Have this process killed when its parent dies, however that happens."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def begin(index: int, start: Callable[[], T]) -> tuple[Conversation, T | None]:
    """Prepare, and report that this process is ready, or why the contender cannot take part here."""
    end_with_harness()
    conversation = Conversation(index)
    try:
        made = start()
    except (Absent, ImportError) as error:
        conversation.say(f"skip {str(error).splitlines()[0]}")
        return conversation, None
    conversation.say("ready")
    return conversation, made
