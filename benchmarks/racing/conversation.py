"""A contender's process: how it talks with the harness, a line each way, over a socket of the harness's.

It says which one it is, then `ready`, or `skip` and why. After that it does what it is told, line by line, until the
harness hangs up.
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
    """A contender cannot take part here, and this is why."""


class Conversation:
    """One process's end of its talk with the harness.

    Args:
        index: Which process of the contender this is.
    """

    def __init__(self, index: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.environ[SOCKET])
        self._received = b""
        self.say(f"hello {index}")

    def say(self, line: str) -> None:
        """Tell the harness something."""
        # Who does not listen any more has what it wants.
        with contextlib.suppress(BrokenPipeError):
            self._socket.sendall(f"{line}\n".encode())

    def has_news(self) -> bool:
        """Whether the harness has said something that was not heard yet."""
        return b"\n" in self._received or bool(select.select([self._socket], [], [], 0)[0])

    def lines(self) -> Iterator[str]:
        """What the harness says, until it hangs up."""
        while True:
            while b"\n" not in self._received:
                more = self._socket.recv(4096)
                if not more:
                    return
                self._received += more
            line, _, self._received = self._received.partition(b"\n")
            yield line.decode()


def end_with_harness() -> None:
    """Have this process killed when its parent dies, however that comes about."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def begin(index: int, start: Callable[[], T]) -> tuple[Conversation, T | None]:
    """Make ready, and say so; nothing is made if this contender cannot take part here."""
    end_with_harness()
    conversation = Conversation(index)
    try:
        made = start()
    except (Absent, ImportError) as error:
        conversation.say(f"skip {str(error).splitlines()[0]}")
        return conversation, None
    conversation.say("ready")
    return conversation, made
