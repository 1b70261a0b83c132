"""The update rules at work: a complete push in, instructions out. Pure: no clock, no socket, no array.

The authority, which knows who takes part, asks the rule. A rule never sees a push twice.
"""

from collections.abc import Set
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from stratagem.parameters.rules import Async, BoundedStaleness, Sync, UpdateRule


class Push(NamedTuple):
    """One worker's gradients of one batch.

    Attributes:
        worker: The worker's number.
        incarnation: Which start of that worker it was.
        sequence: How many pushes that start of the worker has made, this one included.
        base: The global step of the parameters that it was computed on.
        rows: How many examples it was computed from.
    """

    worker: int
    incarnation: str
    sequence: int
    base: int
    rows: int


APPLIED, DROPPED, COUNTED = "applied", "dropped", "counted"


class Verdict(NamedTuple):
    """What is to become of pushes.

    Attributes:
        kind: Applied: averaged by rows, in this order, they make one update. Dropped: their workers are told why. Counted:
            they will be part of an update to come, for which their workers may already compute others.
        pushes: The pushes.
        why: Why they are dropped.
    """

    kind: str
    pushes: tuple[Push, ...]
    why: str = ""


def machine_of(rule: UpdateRule, workers: int) -> "Machine":
    """The machine of a rule, for so many workers."""
    match rule:
        case Async():
            return OnArrival(None)
        case Sync():
            return InStep(rule.for_workers(workers).replicas_to_aggregate or workers, workers)
        case BoundedStaleness(steps):
            return OnArrival(steps)


@dataclass
class InStep:
    """Synchronous: `wanted` pushes of the same step make an update.

    With fewer workers taking part than pushes wanted of different ones, the update takes what there can be; with
    more pushes wanted than there are workers at all, each of them pushes several times.

    Attributes:
        wanted: How many pushes make an update.
        workers: How many workers there are in all.
    """

    wanted: int
    workers: int
    counts_absent: bool = True
    _taken: list[Push] = field(default_factory=list)
    _waiting: list[Push] = field(default_factory=list)

    def complete(self, push: Push, step: int, active: Set[int]) -> list[Verdict]:
        """Take a push of the present step; drop one of an earlier step."""
        if push.base < step:
            return [Verdict(DROPPED, (push,), f"it was computed on step {push.base}, and the step is {step}")]
        if self._count(push.worker) >= self._quota(active):  # a worker that was started again since
            return [Verdict(DROPPED, (push,), f"step {step} has a push of this worker already")]
        self._taken.append(push)
        self._waiting.append(push)
        return self._ready(active) or self._counted(active)

    def changed(self, step: int, active: Set[int]) -> list[Verdict]:
        """See whether the update can be made of what is there."""
        return self._ready(active) or self._counted(active)

    def _counted(self, active: Set[int]) -> list[Verdict]:
        """Count the pushes of waiting workers that have to bring another one for the same update."""
        quota = self._quota(active)
        if quota == 1:
            return []
        counted = tuple(push for push in self._waiting if self._count(push.worker) < quota)
        self._waiting = [push for push in self._waiting if push not in counted]
        return [Verdict(COUNTED, counted)] if counted else []

    def waits_for(self, worker: int, active: Set[int]) -> list[int]:
        """Nobody: all workers go on with the update."""
        return []

    def missing(self, active: Set[int]) -> list[int]:
        """The workers that can still bring a push for the update."""
        quota = self._quota(active)
        return sorted(worker for worker in active if self._count(worker) < quota)

    def forget(self, worker: int) -> None:
        """Forget nothing: what had arrived everywhere was pushed in good faith, and still counts."""

    def reset(self) -> None:
        """Forget the pushes of the present step."""
        self._taken, self._waiting = [], []

    def _count(self, worker: int) -> int:
        """How many pushes of a worker are taken for the update."""
        return sum(push.worker == worker for push in self._taken)

    def _quota(self, active: Set[int]) -> int:
        """How many pushes of one worker an update takes at most."""
        return -(-self.wanted // max(1, len(active))) if self.wanted > self.workers else 1

    def _ready(self, active: Set[int]) -> list[Verdict]:
        if len(self._taken) < min(self.wanted, len(active)):
            return []
        others = {push.worker for push in self._taken} - active  # gone since, but their pushes count
        possible = len(active) + len(others)
        # Several of each worker, as long as there is one who can still bring some.
        needed = self.wanted if self.wanted > self.workers and active else min(self.wanted, possible)
        if not self._taken or len(self._taken) < needed:
            return []
        pushes = tuple(sorted(self._taken))
        self.reset()
        if not any(push.rows for push in pushes):
            return [Verdict(DROPPED, pushes, "no worker had an example for this step")]
        return [Verdict(APPLIED, pushes)]


@dataclass
class OnArrival:
    """Asynchronous: each push is an update; with a bound, nobody may run too far ahead of the slowest.

    A worker that joins late starts level with the slowest.

    Attributes:
        steps: How many pushes ahead a worker may be; `None`: any number.
    """

    steps: int | None
    counts_absent: bool = False
    _clocks: dict[int, int] = field(default_factory=dict)

    def complete(self, push: Push, step: int, active: Set[int]) -> list[Verdict]:
        """Make an update of the push; drop one without an example, which has no gradients."""
        if self.steps is not None:
            self._level(active)
            self._clocks[push.worker] = self._clocks.get(push.worker, self._slowest(active)) + 1
        return [Verdict(APPLIED, (push,)) if push.rows else Verdict(DROPPED, (push,), "it had no example")]

    def changed(self, step: int, active: Set[int]) -> list[Verdict]:
        """Level those who are new with the slowest."""
        self._level(active)
        return []

    def waits_for(self, worker: int, active: Set[int]) -> list[int]:
        """Those who are too far behind a worker."""
        if self.steps is None:
            return []
        self._level(active)
        bound = self._clocks.get(worker, 0) - self.steps
        return sorted(other for other in active if self._clocks[other] < bound)

    def missing(self, active: Set[int]) -> list[int]:
        """Nobody: an update waits for no push."""
        return []

    def forget(self, worker: int) -> None:
        """Count a worker's pushes anew."""
        self._clocks.pop(worker, None)

    def reset(self) -> None:
        """Count all pushes anew."""
        self._clocks = {}

    def _slowest(self, active: Set[int]) -> int:
        return min((self._clocks[worker] for worker in active if worker in self._clocks), default=0)

    def _level(self, active: Set[int]) -> None:
        start = self._slowest(active)
        for worker in active:
            self._clocks.setdefault(worker, start)


Machine: TypeAlias = InStep | OnArrival
"""An update rule at work. All calls are given who takes part; those that return verdicts, the global step, too."""
