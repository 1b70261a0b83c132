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

    def heard(self, task: str, incarnation: str, now: float) -> bool:
        """A task gave a sign of life; whether it is a new start of it."""
        known = self._heard.get(task)
        self._heard[task] = (incarnation, now)
        return known is not None and known[0] != incarnation

    def finish(self, task: str) -> None:
        """A task has finished; of tasks that nobody waits for, no note is taken."""
        if task in self.expected:
            self._finished.add(task)

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
