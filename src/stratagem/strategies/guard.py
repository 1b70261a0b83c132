"""Calls into XLA that wait for other workers, given up as soon as the group has lost one of them."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Final, TypeVar

from stratagem.collectives import Group
from stratagem.errors import RemoteError, StratagemError
from stratagem.runtime.daemon_work import DAEMON_WORK
from stratagem.runtime.wire.failures import first_line

T = TypeVar("T")
_LOOK_SECONDS: Final = 0.2
"""Between two looks at whether the group is still whole, while XLA is busy."""


class Guard:
    """Runs what may wait for other workers in a thread of its own, and the caller watches the group meanwhile.

    A call whose other end is gone without a word may last for ever. It must keep neither the caller nor the
    process, so the thread is a daemon.

    Args:
        group: The workers, who watch each other.
        timeout: Seconds that the group may take to find out who is lost.
    """

    def __init__(self, group: Group, timeout: float) -> None:
        self._group = group
        self._timeout = timeout
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="stratagem-xla", daemon=True).start()

    def run(self, call: Callable[[], T]) -> T:
        """What a call returns or raises.

        Raises:
            WorkerLost: A worker is lost; the call may still be waiting for it.
            RemoteError: XLA failed, for all that is known without a worker being lost.
        """
        future: Future[T] = Future()
        self._asked.put((call, future))
        while not wait([future], _LOOK_SECONDS).done:
            self._group.check()
        try:
            return future.result()
        except StratagemError:
            raise
        except (RuntimeError, ValueError) as error:  # what XLA raises depends on which of its parts noticed
            self._group.check(self._timeout + 1)  # it hears of a loss in its own time
            raise RemoteError(
                f"XLA failed between workers, though every one of them answers: {first_line(error)}. Let all "
                "workers reach each other at any port, and train the same model with the same options"
            ) from error

    def _work(self) -> None:
        while True:
            call, future = self._asked.get()
            with DAEMON_WORK:  # a call that was given up mostly fails a moment later
                try:
                    future.set_result(call())
                except Exception as error:  # noqa: BLE001  raised again by the thread that asked
                    future.set_exception(error)
                del call, future  # or what they hold would live until the next ones come
