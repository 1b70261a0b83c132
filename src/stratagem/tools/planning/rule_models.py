"""The rules that a plan compares: as a user names them, and at work in the simulation.

The models of update rules make the decisions of `stratagem.parameters.rules`, which also handles workers that come and
go, and looks at all workers on every push: with a thousand workers in step that takes seconds per update. The models answer
at once, and a test compares their decisions with the real ones on random sequences of pushes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stratagem.errors import LaunchError
from stratagem.parameters.rules import Async, BoundedStaleness, Sync, UpdateRule

NAMES = ("all-reduce", "sync", "backup", "async", "overlap", "bounded")
WAITS: Sequence[int] = ()
"""The push is kept for a later update."""


@dataclass(frozen=True)
class AllReduce:
    """No servers: all workers hold the variables, and sum their gradients in every step."""


PlannedRule: TypeAlias = AllReduce | UpdateRule


@dataclass(frozen=True)
class RuleChoice:
    """A rule as a user names it, before the number of workers is known."""

    name: str  # one of `NAMES`
    # For `backup`: the number of workers that an update does not wait for; below 1, their share.
    backup: float = 0.05
    staleness: int = 4  # for `bounded`: how many steps a worker may be ahead

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise LaunchError(f"there is no rule {self.name!r}: give {', '.join(NAMES)}")
        if self.backup < 0 or (self.backup >= 1 and self.backup != int(self.backup)):
            raise LaunchError(f"{self.backup:g} backup workers: give a whole number, or a share such as 0.05")
        if self.staleness < 0:
            raise LaunchError(f"a staleness of {self.staleness}: give 0 or more")

    def for_workers(self, workers: int) -> PlannedRule | None:
        """Return the rule; `None` if there are too few workers for it to differ from another."""
        match self.name:
            case "all-reduce":
                return AllReduce()
            case "sync":
                return Sync(workers, workers)
            case "backup":
                spare = int(self.backup) if self.backup >= 1 else max(1, round(self.backup * workers))
                return Sync(workers - spare, workers) if spare < workers else None
            case "bounded":
                return BoundedStaleness(self.staleness)
            case _:
                return Async(overlap=self.name == "overlap")


def rule_label(rule: PlannedRule) -> str:
    """Return the name of a rule in tables."""
    match rule:
        case AllReduce():
            return "all-reduce"
        case Sync(aggregated, total) if aggregated is not None and total is not None and aggregated < total:
            return f"backup {total - aggregated}"
        case Sync():
            return "sync"
        case BoundedStaleness(steps):
            return f"bounded {steps}"
        case Async(overlap):
            return "overlap" if overlap else "async"
        case _:
            return repr(rule)


class RuleModel(ABC):
    """An update rule at work, with workers that never leave."""

    @abstractmethod
    def complete(self, worker: int, base: int, step: int) -> Sequence[int] | None:
        """Take a push that was computed on the parameters of step `base` and arrives at global step `step`.

        Returns:
            The workers whose pushes make an update now, `WAITS`, or `None` if the push is dropped.
        """

    @abstractmethod
    def released(self, pushed: Sequence[int]) -> Sequence[int]:
        """Return the workers that get parameters, and go on, after an update made of the pushes of `pushed`."""


def rule_model(rule: UpdateRule, workers: int) -> RuleModel:
    """Return the model of a rule for a number of workers."""
    match rule:
        case Async():
            return AsyncModel(workers)
        case Sync():
            aggregated = rule.pushes_per_update(workers)
            if aggregated > workers:
                raise LaunchError(
                    f"Sync(replicas_to_aggregate={aggregated}) with {workers} workers: a plan takes at most one push of each "
                    "worker"
                )
            return SyncModel(aggregated)
        case BoundedStaleness(steps):
            return BoundedStalenessModel(steps, workers)
    raise LaunchError(f"a plan cannot simulate {rule!r}: give sg.Async, sg.Sync or sg.BoundedStaleness")


class AsyncModel(RuleModel):
    """Each push is an update."""

    def __init__(self, workers: int) -> None:
        self._alone = [(worker,) for worker in range(workers)]

    def complete(self, worker: int, base: int, step: int) -> Sequence[int] | None:
        return self._alone[worker]

    def released(self, pushed: Sequence[int]) -> Sequence[int]:
        return pushed


class SyncModel(RuleModel):
    """`aggregated` pushes of the same step make an update."""

    def __init__(self, aggregated: int) -> None:
        self._aggregated = aggregated
        self._pushed: list[int] = []

    def complete(self, worker: int, base: int, step: int) -> Sequence[int] | None:
        if base < step:
            return None
        self._pushed.append(worker)
        if len(self._pushed) < self._aggregated:
            return WAITS
        pushed, self._pushed = self._pushed, []
        return pushed

    def released(self, pushed: Sequence[int]) -> Sequence[int]:
        return pushed


class BoundedStalenessModel(RuleModel):
    """Each push is an update, and a worker that is too far ahead of the slowest waits."""

    def __init__(self, steps: int, workers: int) -> None:
        self._steps = steps
        self._alone = [(worker,) for worker in range(workers)]
        self._clocks = [0] * workers
        self._workers_at = {0: workers}
        self._slowest = 0
        self._waiting: dict[int, list[int]] = {}

    def complete(self, worker: int, base: int, step: int) -> Sequence[int] | None:
        return self._alone[worker]

    def released(self, pushed: Sequence[int]) -> Sequence[int]:
        (worker,) = pushed
        clock = self._clocks[worker]
        self._clocks[worker] = clock + 1
        self._workers_at[clock] -= 1
        self._workers_at[clock + 1] = self._workers_at.get(clock + 1, 0) + 1
        released: list[int] = []
        if not self._workers_at[self._slowest]:  # the last worker at this clock has just left it
            del self._workers_at[self._slowest]
            self._slowest += 1
            released = self._waiting.pop(self._slowest + self._steps, released)
        if clock + 1 - self._steps <= self._slowest:
            released.append(worker)
        else:
            self._waiting.setdefault(clock + 1, []).append(worker)
        return released
