"""Which pushes make an update, for thousands of workers that all take part.

The rules are those of `stratagem.parameters.update_rules`, which also know of workers that come and go, and look at all of
them for every push: a thousand workers in step would take them seconds for each update. These here answer at once, and
a test holds them to the same decisions on random sequences of pushes.
"""

from collections.abc import Sequence
from typing import Protocol

from stratagem.errors import LaunchError
from stratagem.parameters.rules import Async, BoundedStaleness, Sync, UpdateRule

WAITS: Sequence[int] = ()
"""The push is kept for an update to come."""


class Deciding(Protocol):
    """One update rule at work, on workers that never leave."""

    def complete(self, worker: int, base: int, step: int) -> Sequence[int] | None:
        """A push has arrived, computed on the parameters of step `base`, while `step` is the global step.

        Returns:
            The workers whose pushes make an update now, `WAITS`, or `None` if the push is dropped.
        """
        ...

    def go_on(self, pushed: Sequence[int]) -> Sequence[int]:
        """The workers that get parameters and go on, after an update of the pushes of these."""
        ...


def deciding_of(rule: UpdateRule, workers: int) -> Deciding:
    """The rule at work, for so many workers."""
    match rule:
        case Async():
            return Arrivals(workers)
        case Sync():
            wanted = rule.for_workers(workers).replicas_to_aggregate or workers
            if wanted > workers:
                raise LaunchError(
                    f"Sync(replicas_to_aggregate={wanted}) with {workers} workers: a plan takes at most one push of each worker"
                )
            return Together(wanted)
        case BoundedStaleness(steps):
            return Within(steps, workers)


class Arrivals:
    """Asynchronous: each push is an update."""

    def __init__(self, workers: int) -> None:
        self._alone = [(worker,) for worker in range(workers)]

    def complete(self, worker: int, base: int, step: int) -> Sequence[int] | None:
        """See `Deciding`."""
        return self._alone[worker]

    def go_on(self, pushed: Sequence[int]) -> Sequence[int]:
        """See `Deciding`."""
        return pushed


class Together:
    """Synchronous: `wanted` pushes of the same step make an update."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._taken: list[int] = []

    def complete(self, worker: int, base: int, step: int) -> Sequence[int] | None:
        """See `Deciding`."""
        if base < step:
            return None
        self._taken.append(worker)
        if len(self._taken) < self._wanted:
            return WAITS
        taken, self._taken = self._taken, []
        return taken

    def go_on(self, pushed: Sequence[int]) -> Sequence[int]:
        """See `Deciding`."""
        return pushed


class Within:
    """Bounded staleness: each push is an update, and who is too far ahead of the slowest waits."""

    def __init__(self, steps: int, workers: int) -> None:
        self._steps = steps
        self._alone = [(worker,) for worker in range(workers)]
        self._clocks = [0] * workers
        self._at = {0: workers}
        self._slowest = 0
        self._waiting: dict[int, list[int]] = {}

    def complete(self, worker: int, base: int, step: int) -> Sequence[int] | None:
        """See `Deciding`."""
        return self._alone[worker]

    def go_on(self, pushed: Sequence[int]) -> Sequence[int]:
        """See `Deciding`."""
        (worker,) = pushed
        clock = self._clocks[worker]
        self._clocks[worker] = clock + 1
        self._at[clock] -= 1
        self._at[clock + 1] = self._at.get(clock + 1, 0) + 1
        freed: list[int] = []
        if not self._at[self._slowest]:  # the last that was there has just left
            del self._at[self._slowest]
            self._slowest += 1
            freed = self._waiting.pop(self._slowest + self._steps, freed)
        if clock + 1 - self._steps <= self._slowest:
            freed.append(worker)
        else:
            self._waiting.setdefault(clock + 1, []).append(worker)
        return freed
