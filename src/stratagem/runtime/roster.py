"""Who of the cluster has been heard of, and who has finished. Pure: times come from outside."""

from dataclasses import dataclass, field


@dataclass
class Roster:
    """The tasks of a cluster as one server knows them.

    Attributes:
        expected: The tasks whose finish makes the job done: workers and chief.
    """

    expected: frozenset[str]
    _heard: dict[str, tuple[str, float]] = field(default_factory=dict)
    _finished: set[str] = field(default_factory=set)
    _last_finish: float = 0.0

    def heard(self, task: str, incarnation: str, now: float) -> bool:
        """A task gave a sign of life; whether it is a new start of it."""
        known = self._heard.get(task)
        self._heard[task] = (incarnation, now)
        return known is not None and known[0] != incarnation

    def finish(self, task: str, now: float) -> bool:
        """A task has finished; whether that is news. Of tasks that nobody waits for, no note is taken."""
        if task not in self.expected or task in self._finished:
            return False
        self._finished.add(task)
        self._last_finish = now
        return True

    def silent(self, now: float, seconds: float) -> set[str]:
        """The expected tasks that have not finished, and of which nothing was heard for so long.

        One that never came counts from when all who came had finished: until then it may just be late.
        """
        waited_for = self.expected - self._finished
        came = {task for task in waited_for if task in self._heard}
        silent = {task for task in came if now - self._heard[task][1] > seconds}
        if self._finished and not came and now - self._last_finish > seconds:
            silent |= waited_for
        return silent

    @property
    def finished(self) -> list[str]:
        """The tasks that have finished, as far as is known here."""
        return sorted(self._finished)

    @property
    def is_done(self) -> bool:
        """Whether every expected task has finished."""
        return bool(self.expected) and self._finished >= self.expected

    def describe(self, now: float) -> dict[str, dict[str, float | str | bool]]:
        """Each task that was heard of: its incarnation, seconds since its last sign, whether it finished."""
        return {
            task: {"incarnation": incarnation, "seconds": now - then, "finished": task in self._finished}
            for task, (incarnation, then) in sorted(self._heard.items())
        }
