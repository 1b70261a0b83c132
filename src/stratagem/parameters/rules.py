"""Update rules: how pushed gradients become updates, as a user names it, and the state machines that decide it. Pure.

A rule is data that every task knows. Its machine runs on server 0: a complete push in, verdicts out. The machine knows no
clock, no socket and no array. The authority, which knows who takes part, asks it; a machine never sees a push twice.
"""

from abc import ABC, abstractmethod
from collections.abc import Set
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Self

from stratagem.errors import StrategyError


class Push(NamedTuple):
    """One worker's gradients of one batch.

    Attributes:
        worker: The worker's number.
        incarnation: Which start of that worker it was.
        sequence: How many pushes that start of the worker has made, this one included.
        base: The global step of the parameters that it was computed on.
        rows: The number of examples that it was computed from.
    """

    worker: int
    incarnation: str
    sequence: int
    base: int
    rows: int


APPLIED, DROPPED, COUNTED = "applied", "dropped", "counted"


class Verdict(NamedTuple):
    """The decision of an update rule about some pushes.

    Attributes:
        kind: APPLIED: averaged by examples, in this order, the pushes make one update; if none has an example, they are
            dropped. DROPPED: their workers learn why. COUNTED: the pushes will be part of an update to come, for which
            their workers may already compute others.
        pushes: The pushes.
        why: Why they are dropped.
    """

    kind: str
    pushes: tuple[Push, ...]
    why: str = ""


class PushMachine(ABC):
    """The state machine of an update rule. Only `complete` has to be written; the rest suits rules without a memory.

    `active` is always the set of the workers that take part now. `step` is the global step: how many updates were made.

    Attributes:
        counts_absent: Whether workers that have not come yet count as active, so that updates wait for them.
    """

    counts_absent: ClassVar[bool] = False

    @abstractmethod
    def complete(self, push: Push, step: int, active: Set[int]) -> list[Verdict]:
        """Decide about a push that has arrived on all servers, and about others that it makes ready."""

    def changed(self, step: int, active: Set[int]) -> list[Verdict]:
        """Decide about pushes that are kept, now that other workers take part."""
        return []

    def waits_for(self, worker: int, active: Set[int]) -> list[int]:
        """Return the workers that a worker has to wait for after its push; asked if the rule `holds_workers`."""
        return []

    def missing(self, active: Set[int]) -> list[int]:
        """Return the workers whose pushes the next update waits for."""
        return []

    def forget(self, worker: int) -> None:  # noqa: B027  most machines know nothing of single workers
        """Forget a worker, which pauses, has gone, or was started again. Pushes that are kept stay: they still count."""

    def reset(self) -> None:  # noqa: B027  nor do they keep any pushes
        """Forget everything: the servers go on from another step, and all pushes that are kept are void."""


class UpdateRule(ABC):
    """A way in which pushed gradients become updates: `Async`, `Sync`, `BoundedStaleness`, or a rule of your own.

    A rule is a frozen dataclass of plain values (numbers, strings, booleans, `None`, tuples of them). Its properties say what
    workers and servers have to know of it, and `machine` makes the state machine that decides about pushes. A rule of your
    own is in a module that the servers may import (`--allow-import MODULE`); it has to override `machine` alone.

    Example:
        >>> @dataclass(frozen=True)
        ... class Fresh(UpdateRule):
        ...     limit: int
        ...
        ...     def machine(self, workers):
        ...         return FreshMachine(self.limit)
        >>> class FreshMachine(PushMachine):
        ...     def __init__(self, limit):
        ...         self.limit = limit
        ...
        ...     def complete(self, push, step, active):
        ...         if step - push.base <= self.limit:
        ...             return [Verdict(APPLIED, (push,))]
        ...         return [Verdict(DROPPED, (push,), f"it is {step - push.base} updates stale")]
        >>> Fresh(1).machine(4).complete(Push(worker=0, incarnation="", sequence=1, base=5, rows=32), 7, {0, 1})[0].why
        'it is 2 updates stale'
    """

    @abstractmethod
    def machine(self, workers: int) -> PushMachine:
        """Make the state machine that decides about the pushes of this number of workers."""

    @property
    def averages_pushes(self) -> bool:
        """True if several pushes are averaged into an update, so that workers train in step."""
        return False

    @property
    def holds_workers(self) -> bool:
        """True if a worker may have to wait after its push until slower ones catch up; see `PushMachine.waits_for`."""
        return False

    @property
    def overlaps(self) -> bool:
        """True if a worker computes its next gradients while its last push is under way."""
        return False

    @property
    def works_in_graph(self) -> bool:
        """True if one client can drive all workers by it (`replication="in-graph"`), where no server runs a machine."""
        return False

    def for_workers(self, workers: int) -> Self:
        """Return the same rule with everything filled in that depends on the number of workers.

        Raises:
            StrategyError: The rule does not fit that number.
        """
        return self

    def pushes_per_update(self, workers: int) -> int:
        """Return the number of pushes that make an update."""
        return 1

    def shares_batches(self, workers: int) -> bool:
        """Return whether each update takes one push of every worker, so that each can compute a share of one batch."""
        return False


# Rules by which every push is an update.


@dataclass(frozen=True)
class Async(UpdateRule):
    """Every push is applied when it arrives, by itself.

    Args:
        overlap: Whether a worker computes its next gradients, on the newest parameters that it has, while its last
            push is still being applied (at most one is under way). That makes every push one update staler than it
            would be otherwise; without it, one worker alone trains exactly as plain training does.
    """

    overlap: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.overlap, bool):
            raise StrategyError(f"Async(overlap={self.overlap!r}): give True or False")

    @property
    def overlaps(self) -> bool:
        return self.overlap

    @property
    def works_in_graph(self) -> bool:
        return True

    def machine(self, workers: int) -> PushMachine:
        return OnArrival()


@dataclass(frozen=True)
class BoundedStaleness(UpdateRule):
    """Every push is applied when it arrives, but a worker more than `steps` pushes ahead of the slowest waits.

    Args:
        steps: How far ahead a worker may be; with 0 all go in step.
    """

    steps: int

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or isinstance(self.steps, bool) or self.steps < 0:
            raise StrategyError(f"BoundedStaleness(steps={self.steps!r}): give a whole number of at least 0")

    @property
    def holds_workers(self) -> bool:
        return True

    def machine(self, workers: int) -> PushMachine:
        return OnArrival(self.steps)


@dataclass
class OnArrival(PushMachine):
    """Makes each push an update; with a bound, no worker may run too far ahead of the slowest.

    A worker that joins late starts level with the slowest.

    Attributes:
        steps: How many pushes ahead a worker may be; `None`: any number.
    """

    steps: int | None = None
    _clocks: dict[int, int] = field(default_factory=dict)

    def complete(self, push: Push, step: int, active: Set[int]) -> list[Verdict]:
        if self.steps is not None:
            self._level(active)
            self._clocks[push.worker] = self._clocks.get(push.worker, self._slowest(active)) + 1
        return [Verdict(APPLIED, (push,)) if push.rows else Verdict(DROPPED, (push,), "it had no example")]

    def changed(self, step: int, active: Set[int]) -> list[Verdict]:
        self._level(active)
        return []

    def waits_for(self, worker: int, active: Set[int]) -> list[int]:
        if self.steps is None:
            return []
        self._level(active)
        bound = self._clocks.get(worker, 0) - self.steps
        return sorted(other for other in active if self._clocks[other] < bound)

    def forget(self, worker: int) -> None:
        self._clocks.pop(worker, None)

    def reset(self) -> None:
        self._clocks = {}

    def _slowest(self, active: Set[int]) -> int:
        return min((self._clocks[worker] for worker in active if worker in self._clocks), default=0)

    def _level(self, active: Set[int]) -> None:
        """Have workers that are new start level with the slowest."""
        start = self._slowest(active)
        for worker in active:
            self._clocks.setdefault(worker, start)


# The rule by which several pushes make an update.


@dataclass(frozen=True)
class Sync(UpdateRule):
    """A number of pushes are averaged into each update, by examples.

    Args:
        replicas_to_aggregate: How many pushes make an update; one of every worker by default.
        total_num_replicas: How many workers push; all by default. If more than `replicas_to_aggregate`, the rest
            are backup workers: an update does not wait for the slowest, whose gradients, then stale, are dropped
            and counted. If fewer, workers push several batches for each update.

    Example:
        >>> Sync(replicas_to_aggregate=3, total_num_replicas=4)  # one backup worker
        Sync(replicas_to_aggregate=3, total_num_replicas=4)
    """

    replicas_to_aggregate: int | None = None
    total_num_replicas: int | None = None

    def __post_init__(self) -> None:
        for name in ("replicas_to_aggregate", "total_num_replicas"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise StrategyError(f"Sync({name}={value!r}): give a whole number of at least 1, or None")

    @property
    def averages_pushes(self) -> bool:
        return True

    @property
    def works_in_graph(self) -> bool:
        return self == Sync()

    def for_workers(self, workers: int) -> "Sync":
        total = workers if self.total_num_replicas is None else self.total_num_replicas
        if total != workers:
            raise StrategyError(
                f"Sync(total_num_replicas={total}): the cluster has {workers} workers; leave it out, or give {workers}"
            )
        return Sync(self.replicas_to_aggregate or total, total)

    def pushes_per_update(self, workers: int) -> int:
        return self.for_workers(workers).replicas_to_aggregate or workers

    def shares_batches(self, workers: int) -> bool:
        return self.pushes_per_update(workers) == workers

    def machine(self, workers: int) -> PushMachine:
        return InStep(self.pushes_per_update(workers), workers)


@dataclass
class InStep(PushMachine):
    """Makes an update of `wanted` pushes of the same step.

    With fewer workers taking part than pushes wanted of different ones, the update takes what there can be; with
    more pushes wanted than there are workers at all, each of them pushes several times.

    Attributes:
        wanted: How many pushes make an update.
        workers: How many workers there are in all.
    """

    wanted: int
    workers: int
    counts_absent = True
    _pushes: list[Push] = field(default_factory=list)
    _waiting: list[Push] = field(default_factory=list)

    def complete(self, push: Push, step: int, active: Set[int]) -> list[Verdict]:
        if push.base < step:
            return [Verdict(DROPPED, (push,), f"it was computed on step {push.base}, and the step is {step}")]
        if self._count(push.worker) >= self._quota(active):  # a worker that was started again since
            return [Verdict(DROPPED, (push,), f"step {step} has a push of this worker already")]
        self._pushes.append(push)
        self._waiting.append(push)
        return self._ready(active) or self._counted(active)

    def changed(self, step: int, active: Set[int]) -> list[Verdict]:
        return self._ready(active) or self._counted(active)

    def missing(self, active: Set[int]) -> list[int]:
        quota = self._quota(active)
        return sorted(worker for worker in active if self._count(worker) < quota)

    def reset(self) -> None:
        self._pushes, self._waiting = [], []

    def _counted(self, active: Set[int]) -> list[Verdict]:
        """Count the pushes of waiting workers that have to bring another one for the same update."""
        quota = self._quota(active)
        if quota == 1:
            return []
        counted = tuple(push for push in self._waiting if self._count(push.worker) < quota)
        self._waiting = [push for push in self._waiting if push not in counted]
        return [Verdict(COUNTED, counted)] if counted else []

    def _count(self, worker: int) -> int:
        """Return the number of a worker's pushes that are kept for the update."""
        return sum(push.worker == worker for push in self._pushes)

    def _quota(self, active: Set[int]) -> int:
        """Return the most pushes of one worker that an update takes."""
        return -(-self.wanted // max(1, len(active))) if self.wanted > self.workers else 1

    def _ready(self, active: Set[int]) -> list[Verdict]:
        """Make the update if all of its pushes are there."""
        if len(self._pushes) < min(self.wanted, len(active)):
            return []
        others = {push.worker for push in self._pushes} - active  # gone since, but their pushes count
        possible = len(active) + len(others)
        # Several of each worker, as long as there is one who can still bring some.
        needed = self.wanted if self.wanted > self.workers and active else min(self.wanted, possible)
        if not self._pushes or len(self._pushes) < needed:
            return []
        pushes = tuple(sorted(self._pushes))
        self.reset()
        if not any(push.rows for push in pushes):
            return [Verdict(DROPPED, pushes, "no worker had an example for this step")]
        return [Verdict(APPLIED, pushes)]
