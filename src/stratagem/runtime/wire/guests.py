"""Who is connected to a listener: strangers, a few at a time, and members, who have been authenticated."""

import threading

from stratagem.errors import LimitExceeded
from stratagem.runtime.wire.limits import Limits
from stratagem.runtime.wire.streams import Stream


class Guests:
    """The connections of one listener, each with the thread that serves it.

    Strangers never stand in the way of members, and the longest waiting stranger gives way to a new one: one
    who says nothing cannot keep out one who has something to say.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._threads: dict[Stream, threading.Thread] = {}
        self._strangers: dict[Stream, None] = {}
        self._members: set[Stream] = set()
        self._closed = False

    def arrive(self, stream: Stream, thread: threading.Thread) -> None:
        """Take in a stranger and start its thread; the oldest one is woken to leave if there are too many."""
        with self._lock:
            if self._closed:
                raise LimitExceeded("the listener has stopped")
            if len(self._strangers) >= max(1, self._limits.strangers):
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                oldest.wake()
            self._strangers[stream] = None
            self._threads[stream] = thread
        try:
            thread.start()
        except RuntimeError as error:
            self.leave(stream)
            raise LimitExceeded(f"no thread for a connection: {error}") from error

    def promote(self, stream: Stream) -> None:
        """A stranger has been authenticated; `LimitExceeded` if there are as many members as may be."""
        with self._lock:
            if stream not in self._strangers:
                raise LimitExceeded("authenticated too late")
            if len(self._members) >= self._limits.connections:
                raise LimitExceeded(
                    f"{self._limits.connections} connections are open, which is all that may be"
                )
            del self._strangers[stream]
            self._members.add(stream)

    def leave(self, stream: Stream) -> None:
        """A connection is over."""
        with self._lock:
            self._strangers.pop(stream, None)
            self._members.discard(stream)
            self._threads.pop(stream, None)

    def counts(self) -> tuple[int, int]:
        """How many members and how many strangers there are."""
        with self._lock:
            return len(self._members), len(self._strangers)

    def dismiss(self) -> list[threading.Thread]:
        """Wake all to leave, let nobody in any more; the threads to wait for."""
        with self._lock:
            self._closed = True
            for stream in self._threads:
                stream.wake()
            return list(self._threads.values())
