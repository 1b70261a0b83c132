"""Who of the cluster has been heard of, who has finished and who was given up. Pure: times come from outside."""

from dataclasses import dataclass, field


@dataclass
class Roster:
    """The tasks of a cluster as one server knows them.

    Attributes:
        expected: The tasks whose end makes the job done: workers and chief.
    """

    expected: frozenset[str]
    _heard: dict[str, tuple[str, float]] = field(default_factory=dict)
    _replaced: dict[str, set[str]] = field(default_factory=dict)
    _finished: set[str] = field(default_factory=set)
    _given_up: set[str] = field(default_factory=set)
    _last_end: float = 0.0

    def heard(self, task: str, incarnation: str, now: float) -> bool | None:
        """A task gave a sign of life; whether it is a new start of it, which from now on speaks for the task alone.

        Returns:
            `None` if a newer start has taken the place of this one.
        """
        known = self._heard.get(task)
        is_new = known is None or known[0] != incarnation
        if is_new and self.is_replaced(task, incarnation):
            return None
        self._heard[task] = (incarnation, now)
        if known is None or not is_new:
            return False
        self._replaced.setdefault(task, set()).add(known[0])
        return True

    def is_replaced(self, task: str, incarnation: str) -> bool:
        """Whether this was a start of the task, and a newer one has taken its place."""
        return incarnation in self._replaced.get(task, ())

    def finish(self, task: str, now: float) -> bool:
        """A task has finished; whether that is news. Of tasks that nobody waits for, no note is taken."""
        return self._end(self._finished, task, now)

    def give_up(self, task: str, now: float) -> bool:
        """A task is not waited for any more; whether that is news. It stays given up, whatever it says later."""
        return self._end(self._given_up, task, now)

    def _end(self, ended: set[str], task: str, now: float) -> bool:
        if task not in self.expected or self.has_ended(task):
            return False
        ended.add(task)
        self._last_end = now
        return True

    def has_ended(self, task: str) -> bool:
        """Whether a task has finished or was given up."""
        return task in self._finished or task in self._given_up

    def silent(self, now: float, seconds: float) -> set[str]:
        """The expected tasks that have not ended, and of which nothing was heard for so long.

        One that never came counts from when all who came had ended: until then it may just be late.
        """
        waited_for = self.expected - self._finished - self._given_up
        came = {task for task in waited_for if task in self._heard}
        silent = {task for task in came if now - self._heard[task][1] > seconds}
        if waited_for < self.expected and not came and now - self._last_end > seconds:
            silent |= waited_for
        return silent

    @property
    def finished(self) -> list[str]:
        """The tasks that have finished, as far as is known here."""
        return sorted(self._finished)

    @property
    def given_up(self) -> list[str]:
        """The tasks that were given up, as far as is known here."""
        return sorted(self._given_up)

    @property
    def is_done(self) -> bool:
        """Whether every expected task has finished, or was given up."""
        return bool(self.expected) and self._finished | self._given_up >= self.expected

    @property
    def has_failed(self) -> bool:
        """Whether every expected task was given up, and none has finished."""
        return self.is_done and not self._finished

    def describe(self, now: float) -> dict[str, dict[str, float | str | bool]]:
        """Each task that was heard of: its incarnation, seconds since its last sign, whether it finished."""
        return {
            task: {"incarnation": incarnation, "seconds": now - then, "finished": task in self._finished}
            for task, (incarnation, then) in sorted(self._heard.items())
        }
