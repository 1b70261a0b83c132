"""The worker tasks that a single client drives, and the calls that it makes of them in the background."""

import logging
import operator
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from stratagem.errors import StratagemError, TaskLost
from stratagem.runtime import RemoteFunction, RemoteVariable, Session
from stratagem.runtime.exits import DAEMON_WORK
from stratagem.runtime.fan_out import RunningCall
from stratagem.runtime.peers import is_lost
from stratagem.runtime.wire.waiting import LOG_EVERY, Deadline, WaitingLog

T = TypeVar("T")
_log = logging.getLogger("stratagem")
_PING_EVERY = 2.0
_PING_SECONDS = 1.0


class WorkerPool:
    """The workers of a cluster, as their client sees them: another worker takes the work of one that is lost.

    Args:
        session: The cluster.
        tasks: The workers.
        rejoin_timeout: Seconds to wait for a worker when all are lost.
    """

    def __init__(self, session: Session, tasks: list[str], rejoin_timeout: float) -> None:
        self.session = session
        self.tasks = tasks
        self._rejoin_timeout = rejoin_timeout
        self._ping_at: dict[str, float] = {}
        """For each lost worker, when to ask again whether it is back."""
        self._lock = threading.Lock()
        self._under_way: dict[object, tuple[str, float]] = {}
        self._watch: threading.Thread | None = None
        self._closing = threading.Event()

    def run(self, function: RemoteFunction, number: int, targets: list[RemoteVariable], *args: Any) -> Any:
        """Run a function on worker `number`, or on another while that one is lost; it may run twice.

        Args:
            function: The function.
            number: The number of the worker.
            targets: The variables to which its first results are assigned.
            *args: Its arguments.
        """
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
                    self._ping_at[task] = time.monotonic() + _PING_EVERY

    @contextmanager
    def _watched(self, task: str) -> Iterator[None]:
        """Log it when a worker keeps the client waiting: it may stand still, or be busy."""
        token = object()
        with self._lock:
            self._under_way[token] = task, time.monotonic()
            if self._watch is None:
                self._watch = threading.Thread(
                    target=self._log_waits, name="stratagem-worker-pool", daemon=True
                )
                self._watch.start()
        try:
            yield
        finally:
            with self._lock:
                del self._under_way[token]

    def _log_waits(self) -> None:
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
        """End the thread that logs waits."""
        self._closing.set()

    def _choose(self, number: int) -> str:
        """Return the worker of a number, or the next one that is there."""
        count = len(self.tasks)
        for turn in range(count):
            task = self.tasks[(number + turn) % count]
            if self._is_there(task):
                return task
        return self._wait_for_any(number)

    def _is_there(self, task: str) -> bool:
        with self._lock:
            ping_at = self._ping_at.get(task)
            if ping_at is None:
                return True
            if time.monotonic() < ping_at:
                return False
            # One thread asks, the others meanwhile take the worker for lost.
            self._ping_at[task] = time.monotonic() + _PING_EVERY
        return self._answers(task)

    def _answers(self, task: str) -> bool:
        try:
            self.session.peers[task].call("ping", timeout=_PING_SECONDS, wait=False)
        except StratagemError:
            return False
        with self._lock:
            if self._ping_at.pop(task, None) is not None:
                _log.warning("%s is back", task)
        return True

    def _wait_for_any(self, number: int) -> str:
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


class BackgroundCall(RunningCall[T]):
    """A call in a thread of its own, which does not keep the process from ending."""

    def __init__(self, call: Callable[..., T], *args: Any) -> None:
        self._call = call
        self._args = args
        self._result: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="stratagem-call", daemon=True)
        self._thread.start()

    def result(self) -> T:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def _run(self) -> None:
        with DAEMON_WORK:
            try:
                self._result = self._call(*self._args)
            except BaseException as error:  # noqa: BLE001  raised again where the result is asked for
                self._error = error
            finally:
                self._args = ()  # a batch, perhaps


class PendingNumber(NDArrayOperatorsMixin):
    """A number that a call under way will bring; looking at it waits for it, as with arrays of JAX.

    Args:
        value: Waits for the number, and returns it.
    """

    def __init__(self, value: Callable[[], Any]) -> None:
        self._value = value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = np.asarray(self._value(), dtype)
        return array.copy() if copy else array

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        known = [np.asarray(each) if isinstance(each, PendingNumber) else each for each in inputs]
        return getattr(ufunc, method)(*known, **kwargs)

    def __float__(self) -> float:
        return float(self._value())

    def __int__(self) -> int:
        return int(self._value())

    def __index__(self) -> int:
        return operator.index(self._value())

    def __bool__(self) -> bool:
        return bool(self._value())

    def __format__(self, how: str) -> str:
        return format(np.asarray(self._value()).item(), how)

    def __repr__(self) -> str:
        return repr(self._value())
