"""The worker tasks that a single client drives: each part of the work has its own worker, or another while that is lost."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stratagem.errors import StratagemError, TaskLost
from stratagem.runtime import RemoteFunction, RemoteVariable, Session
from stratagem.runtime.peers import is_lost
from stratagem.runtime.wire.waiting import LOG_EVERY, Deadline, WaitingLog

_log = logging.getLogger("stratagem")
_ASK_EVERY = 2.0
_ASK_SECONDS = 1.0


class Crew:
    """The workers of a cluster, as their client sees them.

    Args:
        session: The cluster.
        tasks: The workers.
        rejoin_timeout: Seconds to wait for one of them when all are lost.
    """

    def __init__(self, session: Session, tasks: list[str], rejoin_timeout: float) -> None:
        self.session = session
        self.tasks = tasks
        self._rejoin_timeout = rejoin_timeout
        self._ask_again: dict[str, float] = {}
        self._lock = threading.Lock()
        self._under_way: dict[object, tuple[str, float]] = {}
        self._watch: threading.Thread | None = None
        self._closing = threading.Event()

    def run(self, function: RemoteFunction, number: int, targets: list[RemoteVariable], *args: Any) -> Any:
        """Run part `number` of the work, which may be run twice; its first results go to the variables given."""
        while True:
            task = self._choose(number)
            try:
                with self._watched(task):
                    return function.at(task, assign_to=targets, wait=False)(*args)
            except StratagemError as error:
                if not is_lost(self.session.peers[task], error):
                    raise
                _log.warning("%s is lost; another worker does its part until it comes back: %s", task, error)
                with self._lock:
                    self._ask_again[task] = time.monotonic() + _ASK_EVERY

    @contextmanager
    def _watched(self, task: str) -> Iterator[None]:
        """Have it said when a worker lets the client wait: it may stand still, or just have much to do."""
        token = object()
        with self._lock:
            self._under_way[token] = task, time.monotonic()
            if self._watch is None:
                self._watch = threading.Thread(target=self._say_who, name="stratagem-crew", daemon=True)
                self._watch.start()
        try:
            yield
        finally:
            with self._lock:
                del self._under_way[token]

    def _say_who(self) -> None:
        while not self._closing.wait(LOG_EVERY):
            now = time.monotonic()
            with self._lock:
                waits = {task: now - began for task, began in self._under_way.values()}
            for task, seconds in sorted(waits.items()):
                if seconds >= LOG_EVERY:
                    _log.warning(
                        "waiting for %s, which computes or stands still (%.0f s so far)", task, seconds
                    )

    def close(self) -> None:
        """End its thread."""
        self._closing.set()

    def _choose(self, number: int) -> str:
        """The worker of that number, or the next one that is there."""
        count = len(self.tasks)
        for turn in range(count):
            task = self.tasks[(number + turn) % count]
            if self._is_there(task):
                return task
        return self._first_to_return(number)

    def _is_there(self, task: str) -> bool:
        with self._lock:
            asks_at = self._ask_again.get(task)
            if asks_at is None:
                return True
            if time.monotonic() < asks_at:
                return False
            self._ask_again[task] = (
                time.monotonic() + _ASK_EVERY
            )  # one thread asks, others go by what is known
        return self._answers(task)

    def _answers(self, task: str) -> bool:
        try:
            self.session.peers[task].call("ping", timeout=_ASK_SECONDS, wait=False)
        except StratagemError:
            return False
        with self._lock:
            if self._ask_again.pop(task, None) is not None:
                _log.warning("%s is back", task)
        return True

    def _first_to_return(self, number: int) -> str:
        """Wait for any worker, though all are lost."""
        deadline, log = Deadline(self._rejoin_timeout), WaitingLog()
        while deadline.left():
            for turn in range(len(self.tasks)):
                task = self.tasks[(number + turn) % len(self.tasks)]
                if self._answers(task):
                    return task
            if log.is_due(deadline.elapsed()):
                _log.warning("all workers are lost: %s; waiting for any of them", ", ".join(self.tasks))
            threading.Event().wait(0.1)  # between two rounds of asking
        raise TaskLost(
            f"all workers are lost ({', '.join(self.tasks)}), and none has come back within {self._rejoin_timeout:g} s "
            "(rejoin_timeout): start them again, and the client after them"
        )
