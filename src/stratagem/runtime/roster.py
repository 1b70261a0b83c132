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
        is_new = known is not None and known[0] != incarnation
        if is_new:
            self._finished.discard(task)
        return is_new

    def finish(self, task: str) -> bool:
        """A task said that it has finished; whether that makes the job done."""
        self._finished.add(task)
        return self.is_done

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
