"""Which closure runs where, and what becomes of all when one fails or a worker is lost. Pure: events in, orders out.

Closures are known by number. One that fails cancels all that are queued, and its error is taken once; what was
scheduled before that belongs to the past: it may still finish, but neither its errors nor its losses count any more.
"""

from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from stratagem.errors import TaskLost

MOST_LOSSES = 5
"""How many workers may be lost over one closure before it is taken for the cause."""


@dataclass(frozen=True)
class Run:
    """Have a worker run a closure."""

    worker: str
    closure: int


@dataclass(frozen=True)
class Cancel:
    """A closure will never run, or not again."""

    closure: int


@dataclass(frozen=True)
class Fail:
    """A closure is given up for a reason that was found here."""

    closure: int
    error: Exception


Order: TypeAlias = Run | Cancel | Fail


class Dispatch:
    """The queue of closures and the workers that take from it.

    Args:
        limit: How many closures may be queued; those that run do not count.

    Example:
        >>> dispatch = Dispatch(limit=10)
        >>> dispatch.arrived("/job:worker/task:0")
        []
        >>> dispatch.scheduled(1)
        [Run(worker='/job:worker/task:0', closure=1)]
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queued: deque[int] = deque()
        self._idle: deque[str] = deque()
        self._running: dict[str, int] = {}
        self._losses: dict[int, int] = {}
        self._newest_of_the_past = -1
        self._newest = -1
        self._error: Exception | None = None
        self._is_closed = False

    # What there is to know.

    @property
    def queued(self) -> int:
        """How many closures wait for a worker."""
        return len(self._queued)

    @property
    def running(self) -> dict[str, int]:
        """Which worker runs which closure."""
        return dict(self._running)

    @property
    def workers(self) -> set[str]:
        """The workers that are there."""
        return {*self._idle, *self._running}

    @property
    def is_full(self) -> bool:
        """Whether no more may be scheduled for now."""
        return len(self._queued) >= self._limit

    @property
    def is_done(self) -> bool:
        """Whether nothing is queued and nothing runs."""
        return not self._queued and not self._running

    @property
    def has_failed(self) -> bool:
        """Whether there is an error that nobody has taken."""
        return self._error is not None

    # What happens.

    def scheduled(self, closure: int) -> list[Order]:
        """A closure is to run; numbers grow."""
        self._newest = closure
        self._queued.append(closure)
        return self._hand_out()

    def arrived(self, worker: str) -> list[Order]:
        """A worker is there, for the first time or again."""
        if worker not in self.workers:
            self._idle.append(worker)
        return self._hand_out()

    def finished(self, worker: str) -> list[Order]:
        """A worker has run its closure."""
        self._losses.pop(self._running.pop(worker), None)
        self._idle.append(worker)
        return self._hand_out()

    def failed(self, worker: str, error: Exception) -> list[Order]:
        """A worker's closure raised an error."""
        closure = self._running.pop(worker)
        self._idle.append(worker)
        return [*self._fail(closure, error), *self._hand_out()]

    def lost(self, worker: str) -> list[Order]:
        """A worker is gone; what it ran, if anything, is the next to be run."""
        if worker not in self._running:
            if worker in self._idle:
                self._idle.remove(worker)
            return []
        closure = self._running.pop(worker)
        if self._is_past(closure) or self._error is not None or self._is_closed:
            self._losses.pop(closure, None)
            return [Cancel(closure)]
        self._losses[closure] = self._losses.get(closure, 0) + 1
        if self._losses[closure] >= MOST_LOSSES:
            error = TaskLost(
                f"{MOST_LOSSES} workers were lost one after the other while they ran the same closure, {worker} the "
                "last: it is taken for the cause, perhaps by the memory it needs. See the log of the workers"
            )
            return [Fail(closure, error), *self._fail(closure, error)]
        self._queued.appendleft(closure)
        return self._hand_out()

    def closed(self) -> list[Order]:
        """No more is to run; what runs may finish."""
        self._is_closed = True
        return self._cancel_queued()

    def take_error(self) -> Exception | None:
        """The first error, once; from then on everything goes on afresh."""
        error, self._error = self._error, None
        if error is not None:
            self._newest_of_the_past = self._newest
        return error

    def _fail(self, closure: int, error: Exception) -> list[Order]:
        self._losses.pop(closure, None)
        if self._is_past(closure) or self._error is not None:
            return []
        self._error = error
        return self._cancel_queued()

    def _cancel_queued(self) -> list[Order]:
        orders: list[Order] = [Cancel(closure) for closure in self._queued]
        self._queued.clear()
        self._losses.clear()
        return orders

    def _is_past(self, closure: int) -> bool:
        return closure <= self._newest_of_the_past

    def _hand_out(self) -> list[Order]:
        orders: list[Order] = []
        while self._queued and self._idle:
            worker, closure = self._idle.popleft(), self._queued.popleft()
            self._running[worker] = closure
            orders.append(Run(worker, closure))
        return orders
