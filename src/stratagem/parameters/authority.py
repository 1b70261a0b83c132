"""The decisions of parameter server 0 for all: who takes part, which pushes make which update, when snapshots are due. Pure.

A push is complete when every server has its part. Only then does the update rule see it, so an update is made on
all servers or on none; and every server makes the same updates in the same order, that of the global step.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from stratagem.errors import StrategyError
from stratagem.parameters.rules import APPLIED, DROPPED, Push, UpdateRule, Verdict

_REMEMBERED = 8
"""Decisions kept for each worker: it has one push or two under way, never more."""
_REMEMBERED_STEPS = 1024
"""Updates that a server may be behind by and still ask for."""
Applied: TypeAlias = Mapping[int, tuple[str, int]]
"""The last push of each worker that values contain: which start of the worker, and the push's number."""


class Decision(NamedTuple):
    """The decision about a push."""

    kind: str  # applied in an update, dropped, or counted: kept for an update to come
    step: int  # the global step that its update made; the present one, if it was not applied
    pushes: tuple[Push, ...] = ()  # the pushes of the update, in the order in which they are averaged
    why: str = ""  # why it was dropped
    snapshot: bool = False  # whether every server is to copy its values right after this update

    @classmethod
    def from_fields(cls, kind: str, step: int, pushes: Any, why: str, snapshot: bool) -> "Decision":
        """Return the decision that another server was sent in plain values."""
        return cls(kind, step, tuple(Push(*push) for push in pushes), why, snapshot)


@dataclass
class Member:
    """One worker."""

    incarnation: str | None = None  # the latest start of it; none if it has not come yet
    sequence: int = 0  # its last push that was applied or dropped
    is_active: bool = True  # whether it is pushing, rather than between two passes over its data
    is_meeting: bool = False  # whether it waits for the other workers, and so cannot push
    has_gone: str = ""  # why it takes part no more, if it has finished or was given up
    # The newest decisions about its pushes, by their numbers.
    decisions: dict[int, Decision] = field(default_factory=dict)


class Authority:
    """The book that all servers follow.

    Args:
        servers: Which servers must have their part of a push before it counts.
    """

    def __init__(self, rule: UpdateRule, workers: int, servers: Iterable[int]) -> None:
        self.step = 0  # the global step: how many updates have been decided
        self.decided = 0  # how many pushes have been decided about
        self.snapshot_wanted = False  # whether the next update is to be followed by a snapshot
        # The updates that are, with what was applied by then; for the caller to take.
        self.snapshots: list[tuple[int, Applied]] = []
        # For each number of steps between a push's parameters and its update, how many pushes were applied.
        self.staleness: Counter[int] = Counter()
        self.pushed: Counter[int] = Counter()  # how many pushes of each worker were applied
        self.dropped: Counter[int] = Counter()  # how many were dropped
        self._machine = rule.machine(workers)
        self._servers = frozenset(servers)
        self._members = {worker: Member() for worker in range(workers)}
        self._arrivals: dict[Push, set[int]] = {}
        self._undecided: set[Push] = set()
        self._decisions_by_step: dict[int, Decision] = {}
        self._held_back: list[Push] | None = None
        self.active = self._active()  # the workers that updates wait for

    # Who takes part.

    def _active(self) -> set[int]:
        return {
            worker
            for worker, member in self._members.items()
            if member.is_active
            and not member.is_meeting
            and not member.has_gone
            and (member.incarnation is not None or self._machine.counts_absent)
        }

    def member(self, worker: int) -> Member:
        """Return a worker.

        Raises:
            StrategyError: There is no such worker.
        """
        try:
            return self._members[worker]
        except KeyError:
            raise StrategyError(f"there is no worker {worker}: the job has {len(self._members)}") from None

    def join(self, worker: int, incarnation: str) -> None:
        """Let a worker take part that has come, perhaps again: pushes that an earlier start left unfinished are forgotten."""
        member = self.member(worker)
        if member.incarnation == incarnation:
            return
        for push in [push for push in self._arrivals if push.worker == worker]:
            del self._arrivals[push]
        self._machine.forget(worker)
        self._members[worker] = Member(incarnation, is_active=True)
        self._changed()

    def pause(self, worker: int) -> None:
        """Let no update wait for a worker that has come to the end of its data; its next push brings it back."""
        member = self.member(worker)
        if member.is_active:
            member.is_active = False
            self._machine.forget(worker)
            self._changed()

    def meet(self, worker: int) -> None:
        """Let no update wait for a worker that waits for the others: it would never be made."""
        if not self.member(worker).is_meeting:
            self.member(worker).is_meeting = True
            self._changed()

    def met(self, workers: Iterable[int]) -> None:
        """Let updates wait again for workers that have met the others."""
        for worker in workers:
            self.member(worker).is_meeting = False
        self._changed()

    def leave(self, worker: int, why: str) -> None:
        """Record that a worker has finished, or was given up."""
        member = self.member(worker)
        if not member.has_gone:
            member.has_gone = why
            self._machine.forget(worker)
            self._changed()

    # Pushes.

    def arrived(self, push: Push, server: int) -> Decision | None:
        """Record that a server has its part of a push; return the decision about it, if there is one by now."""
        member = self.member(push.worker)
        if push.incarnation != member.incarnation:
            return self.decision(*push[:3])  # of an earlier start
        decision = member.decisions.get(push.sequence)
        if decision is not None or push.sequence <= member.sequence or push in self._undecided:
            return decision  # sent again, by a worker that did not get the answer
        if not member.is_active or member.is_meeting:
            member.is_active, member.is_meeting = True, False
            self._changed()
        if len(self._servers) > 1:
            arrivals = self._arrivals.setdefault(push, set())
            arrivals.add(server)
            if not arrivals >= self._servers:
                return None
            del self._arrivals[push]
        self._undecided.add(push)
        if self._held_back is not None:
            self._held_back.append(push)
            return None
        self._follow(self._machine.complete(push, self.step, self.active))
        return member.decisions.get(push.sequence)

    def decision(self, worker: int, incarnation: str, sequence: int) -> Decision | None:
        """Return the decision about a push; `None` if there is none yet."""
        member = self.member(worker)
        if incarnation != member.incarnation:
            # One that is complete counts all the same, and stays with the servers until its update is made.
            if any(push[:3] == (worker, incarnation, sequence) for push in self._undecided):
                return None
            return Decision(DROPPED, self.step, why="this worker has been started again since")
        return member.decisions.get(sequence)

    def decision_of_step(self, step: int) -> Decision | None:
        """Return the decision that led to a step; `None` if there is none, or it is long ago."""
        return self._decisions_by_step.get(step)

    def waits_for(self, worker: int) -> list[int]:
        """Return the workers for which a worker has to wait before it may go on."""
        return self._machine.waits_for(worker, self.active)

    def missing(self) -> list[int]:
        """Return the workers whose pushes the next update waits for."""
        return self._machine.missing(self.active)

    # Standing still.

    def hold(self) -> int:
        """Decide nothing until `release`; return the step at which all servers will then stand still."""
        if self._held_back is None:
            self._held_back = []
        return self.step

    def release(self) -> None:
        """Go on deciding."""
        pushes, self._held_back = self._held_back, None
        self._changed()  # others may take part by now
        for push in pushes or ():
            self._follow(self._machine.complete(push, self.step, self.active))

    def forget_pushes(self) -> None:
        """Forget all pushes that are not decided by now."""
        self._arrivals.clear()
        self._undecided.clear()
        self._decisions_by_step.clear()
        self._held_back = None
        self._machine.reset()
        self.snapshots = []
        self.snapshot_wanted = False

    def rewind(self, step: int, applied: Applied) -> None:
        """Go back to an earlier step, whose values contain these pushes."""
        self.step = step
        self.forget_pushes()
        for worker, member in self._members.items():
            incarnation, sequence = applied.get(worker, (None, 0))
            if member.incarnation is None or member.incarnation == incarnation:
                member.incarnation, member.sequence = incarnation, sequence
            else:
                member.sequence = 0
            member.decisions.clear()
        self.active = self._active()

    @property
    def applied(self) -> Applied:
        """For each worker that has come: its start, and its last push that was decided."""
        return {
            worker: (member.incarnation, member.sequence)
            for worker, member in self._members.items()
            if member.incarnation is not None
        }

    # Deciding.

    def _changed(self) -> None:
        self.active = self._active()
        if self._held_back is None:
            self._follow(self._machine.changed(self.step, self.active))

    def _follow(self, verdicts: list[Verdict]) -> None:
        for kind, pushes, why in verdicts:
            if kind == APPLIED and not any(push.rows for push in pushes):
                kind, why = DROPPED, "no push had an example"
            if kind == APPLIED:
                for push in pushes:
                    self.staleness[self.step - push.base] += 1
                    self.pushed[push.worker] += 1
                self.step += 1
                decision = Decision(APPLIED, self.step, pushes, snapshot=self.snapshot_wanted)
                self._decisions_by_step[self.step] = decision
                self._decisions_by_step.pop(self.step - _REMEMBERED_STEPS, None)
            else:
                if kind == DROPPED:
                    self.dropped.update(push.worker for push in pushes)
                decision = Decision(kind, self.step, why=why)
            self._record(pushes, decision)
            if decision.snapshot:
                self.snapshot_wanted = False
                self.snapshots.append((self.step, self.applied))

    def _record(self, pushes: tuple[Push, ...], decision: Decision) -> None:
        """Keep the decision about pushes for their workers, as long as they may ask for it."""
        self.decided += len(pushes)
        for push in pushes:
            self._undecided.discard(push)
            member = self._members[push.worker]
            if push.incarnation == member.incarnation:
                member.sequence = max(member.sequence, push.sequence)
                member.decisions[push.sequence] = decision
                if len(member.decisions) > _REMEMBERED:
                    del member.decisions[min(member.decisions)]


class SnapshotSchedule:
    """When snapshots of one model are due. One is committed only if history has gone on from where it was made.

    Args:
        period: Seconds from one to the next; `None` if none are made.
    """

    def __init__(self, period: float | None) -> None:
        self.newest = 0  # the step of the newest snapshot, or of the values that training began with
        self.history = 0  # how often history has gone on from elsewhere
        self._period = period
        self._since: float | None = None
        self._is_under_way = False

    @property
    def are_made(self) -> bool:
        """True if snapshots are made at all."""
        return self._period is not None

    def begin_if_due(self, now: float, step: int) -> bool:
        """Return whether a snapshot is due, if updates have got to this step; one that is due counts as begun."""
        if self._period is None:
            return False
        self._since = now if self._since is None else self._since
        is_due = not self._is_under_way and now - self._since >= self._period and step > self.newest
        self._is_under_way = self._is_under_way or is_due
        return is_due

    def may_commit(self, history: int) -> bool:
        """Return whether a snapshot that was begun in this history may be committed."""
        return history == self.history

    def finished(self, step: int, history: int, now: float, is_written: bool) -> None:
        """Record that a snapshot is committed, or could not be; the next is due a period later."""
        if history == self.history:
            self._is_under_way = False
            self._since = now
            if is_written:
                self.newest = step

    def rewound(self, step: int) -> None:
        """Go on from a step; the time to the next snapshot counts from the next tick."""
        self.void()
        self.newest, self._since, self._is_under_way = step, None, False

    def void(self) -> None:
        """Commit no snapshot that was begun before this."""
        self.history += 1
