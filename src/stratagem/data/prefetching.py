"""A stream read ahead by a thread of its own, which ends with its reader."""

import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from stratagem.runtime.exits import DAEMON_WORK

_PATIENCE = 1.0


class Prefetched:
    """Reads ahead, at most so many elements; errors of the stream come where they happened in it.

    Args:
        stream: What to read.
        ahead: How many elements to hold.
    """

    def __init__(self, stream: Iterable[Any], ahead: int) -> None:
        self._changed = threading.Condition()
        self._is_ending = sys.is_finalizing  # when that is true, this module may be gone
        self._waiting: deque[Any] = deque()
        self._ahead = ahead
        self._is_closed = self._is_over = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._read, args=(iter(stream),), name="stratagem-prefetch", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_over)
                if not self._waiting:
                    break
                element = self._waiting.popleft()
                self._changed.notify_all()
            yield element
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread; one that waits for the stream's next element ends when it has it."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if not self._is_ending():  # then threads are frozen, and end with the interpreter
            self._thread.join(_PATIENCE)

    def _read(self, stream: Iterator[Any]) -> None:
        try:
            for element in _at_work(stream):
                with self._changed:
                    self._changed.wait_for(lambda: len(self._waiting) < self._ahead or self._is_closed)
                    if self._is_closed:
                        break
                    self._waiting.append(element)
                    self._changed.notify_all()
            if self._is_closed and hasattr(stream, "close"):
                stream.close()  # a generator's `finally` runs now, in the thread that ran the rest of it
        except BaseException as error:  # noqa: BLE001  raised again where the element is asked for
            self._error = error
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()


def _at_work(stream: Iterator[Any]) -> Iterator[Any]:
    """The same, as work of a daemon thread: whoever makes the elements may do so with JAX."""
    while True:
        with DAEMON_WORK:
            try:
                element = next(stream)
            except StopIteration:
                return
        yield element
