"""Which tasks of the cluster are alive, which have finished, and which were given up. Pure: times come from outside."""

from dataclasses import dataclass, field


@dataclass
class Roster:
    """The tasks of a cluster as one server knows them.

    Attributes:
        expected: The tasks whose end makes the job done: workers and chief.
    """

    expected: frozenset[str]
    _signs: dict[str, tuple[str, float]] = field(default_factory=dict)
    _replaced: dict[str, set[str]] = field(default_factory=dict)
    _finished: set[str] = field(default_factory=set)
    _given_up: set[str] = field(default_factory=set)
    _last_end: float = 0.0

    def hear(self, task: str, incarnation: str, now: float) -> bool | None:
        """Record a task's sign of life.

        Returns:
            True if this is a new start of the task, which from now on speaks for it alone; `None` if a newer start has
            replaced this one.
        """
        known = self._signs.get(task)
        is_new = known is None or known[0] != incarnation
        if is_new and self.is_replaced(task, incarnation):
            return None
        self._signs[task] = (incarnation, now)
        if known is None or not is_new:
            return False
        self._replaced.setdefault(task, set()).add(known[0])
        return True

    def is_replaced(self, task: str, incarnation: str) -> bool:
        """Return whether this was a start of the task that a newer one has replaced."""
        return incarnation in self._replaced.get(task, ())

    def finish(self, task: str, now: float) -> bool:
        """Record that a task has finished; return whether that is news. Tasks that nobody waits for are ignored."""
        return self._end(self._finished, task, now)

    def give_up(self, task: str, now: float) -> bool:
        """Record that a task is not waited for any more; return whether that is news. It stays given up for good."""
        return self._end(self._given_up, task, now)

    def _end(self, ended: set[str], task: str, now: float) -> bool:
        if task not in self.expected or self.has_ended(task):
            return False
        ended.add(task)
        self._last_end = now
        return True

    def has_ended(self, task: str) -> bool:
        """Return whether a task has finished or was given up."""
        return task in self._finished or task in self._given_up

    def silent(self, now: float, seconds: float) -> set[str]:
        """Return the expected tasks that have not ended and gave no sign of life for this many seconds.

        A task that never came counts from the moment when all others had ended: until then it may just be late.
        """
        pending = self.expected - self._finished - self._given_up
        present = {task for task in pending if task in self._signs}
        silent = {task for task in present if now - self._signs[task][1] > seconds}
        if pending < self.expected and not present and now - self._last_end > seconds:
            silent |= pending
        return silent

    @property
    def finished(self) -> list[str]:
        """The tasks known to have finished."""
        return sorted(self._finished)

    @property
    def given_up(self) -> list[str]:
        """The tasks known to have been given up."""
        return sorted(self._given_up)

    @property
    def is_done(self) -> bool:
        """True if every expected task has finished or was given up."""
        return bool(self.expected) and self._finished | self._given_up >= self.expected

    @property
    def has_failed(self) -> bool:
        """True if every expected task was given up, and none has finished."""
        return self.is_done and not self._finished

    def describe(self, now: float) -> dict[str, dict[str, float | str | bool]]:
        """Return, for each task that gave a sign of life, its incarnation, the seconds since, and whether it finished."""
        return {
            task: {"incarnation": incarnation, "seconds": now - then, "finished": task in self._finished}
            for task, (incarnation, then) in sorted(self._signs.items())
        }
