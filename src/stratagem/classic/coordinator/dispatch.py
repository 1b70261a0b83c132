"""Decide which closure runs where, and what follows when one fails or a worker is lost.

Pure: takes events and returns instructions. Closures are known by number. One that fails cancels all that are queued,
and its error is taken once. Closures scheduled before that are outdated: they may still finish, but their errors and
losses no longer count.
"""

from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from stratagem.errors import TaskLost

MOST_LOSSES = 5
"""The number of workers lost while they run the same closure after which it is taken for the cause."""


@dataclass(frozen=True)
class RunClosure:
    """Have a worker run a closure."""

    worker: str
    closure: int


@dataclass(frozen=True)
class CancelClosure:
    """A closure will never run, or not again."""

    closure: int


@dataclass(frozen=True)
class FailClosure:
    """Give up a closure, for a reason that was found here."""

    closure: int
    error: Exception


Instruction: TypeAlias = RunClosure | CancelClosure | FailClosure


class Dispatch:
    """The queue of closures and the workers that take from it.

    Args:
        limit: How many closures may be queued, not counting those that run.

    Example:
        >>> dispatch = Dispatch(limit=10)
        >>> dispatch.add_worker("/job:worker/task:0")
        []
        >>> dispatch.schedule(1)
        [RunClosure(worker='/job:worker/task:0', closure=1)]
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queue: deque[int] = deque()
        self._idle: deque[str] = deque()
        self._running: dict[str, int] = {}
        self._losses: dict[int, int] = {}
        self._newest_outdated = -1
        self._newest = -1
        self._error: Exception | None = None
        self._is_closed = False

    # State.

    @property
    def queue_length(self) -> int:
        """The number of closures that wait for a worker."""
        return len(self._queue)

    @property
    def running(self) -> dict[str, int]:
        """The closure that each busy worker runs."""
        return dict(self._running)

    @property
    def workers(self) -> set[str]:
        """The workers that are there."""
        return {*self._idle, *self._running}

    @property
    def is_full(self) -> bool:
        """True while no more closures may be scheduled."""
        return len(self._queue) >= self._limit

    @property
    def is_done(self) -> bool:
        """True if no closure is queued and none runs."""
        return not self._queue and not self._running

    @property
    def has_failed(self) -> bool:
        """True if there is an error that nobody has taken."""
        return self._error is not None

    # Events.

    def schedule(self, closure: int) -> list[Instruction]:
        """Queue a closure. Numbers have to increase."""
        self._newest = closure
        self._queue.append(closure)
        return self._assign()

    def add_worker(self, worker: str) -> list[Instruction]:
        """Note that a worker is there, for the first time or again."""
        if worker not in self.workers:
            self._idle.append(worker)
        return self._assign()

    def finish(self, worker: str) -> list[Instruction]:
        """Note that a worker has run its closure."""
        self._losses.pop(self._running.pop(worker), None)
        self._idle.append(worker)
        return self._assign()

    def fail(self, worker: str, error: Exception) -> list[Instruction]:
        """Note that a worker's closure raised an error."""
        closure = self._running.pop(worker)
        self._idle.append(worker)
        return [*self._record_error(closure, error), *self._assign()]

    def remove_worker(self, worker: str) -> list[Instruction]:
        """Note that a worker is lost; the closure that it ran, if any, runs next."""
        if worker not in self._running:
            if worker in self._idle:
                self._idle.remove(worker)
            return []
        closure = self._running.pop(worker)
        if self._is_outdated(closure) or self._error is not None or self._is_closed:
            self._losses.pop(closure, None)
            return [CancelClosure(closure)]
        self._losses[closure] = self._losses.get(closure, 0) + 1
        if self._losses[closure] >= MOST_LOSSES:
            error = TaskLost(
                f"{MOST_LOSSES} workers were lost one after the other while they ran the same closure, {worker} the "
                "last: it is taken for the cause, perhaps by the memory it needs. See the log of the workers"
            )
            return [FailClosure(closure, error), *self._record_error(closure, error)]
        self._queue.appendleft(closure)
        return self._assign()

    def close(self) -> list[Instruction]:
        """Cancel the queue for good; closures that run may finish."""
        self._is_closed = True
        return self._cancel_queue()

    def take_error(self) -> Exception | None:
        """Return the first error, once; closures scheduled until now are outdated from here on."""
        error, self._error = self._error, None
        if error is not None:
            self._newest_outdated = self._newest
        return error

    def _record_error(self, closure: int, error: Exception) -> list[Instruction]:
        self._losses.pop(closure, None)
        if self._is_outdated(closure) or self._error is not None:
            return []
        self._error = error
        return self._cancel_queue()

    def _cancel_queue(self) -> list[Instruction]:
        instructions: list[Instruction] = [CancelClosure(closure) for closure in self._queue]
        self._queue.clear()
        self._losses.clear()
        return instructions

    def _is_outdated(self, closure: int) -> bool:
        return closure <= self._newest_outdated

    def _assign(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        while self._queue and self._idle:
            worker, closure = self._idle.popleft(), self._queue.popleft()
            self._running[worker] = closure
            instructions.append(RunClosure(worker, closure))
        return instructions
