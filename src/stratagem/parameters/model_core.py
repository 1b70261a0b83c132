"""The state machine by which server 0 decides everything about one model on its servers. Pure: events in, instructions out.

The states, and what leads from one to the next:

    EMPTY ──────── a worker joined, no snapshot ───────> WAITING_FOR_VALUES
      │ a worker joined, all restored a snapshot              │ the chief has filled all servers
      └───────────────────────> OPENING <─────────────────────┘
                                │  ^  ^
             all servers begun, │  │  └── all restored the newest snapshot ── ROLLING_BACK
             snapshot written   │  │ the chief replaces all values                ^   │ no snapshot
                                v  │                                              │   v
                                OPEN ── an update failed, a server was lost ──────┘  LOST
                                 ^ v      (from HOLDING, too)
                               HOLDING    somebody reads or sets values of one step: no update is decided

An OPENING that fails goes back to the state that it came from, or to ROLLING_BACK if the chief was replacing values. EMPTY
becomes LOST if another server, or a worker, has values of which there is no snapshot. Pushes are decided in OPEN only.

A conversation is an event that takes several instructions: a generator that yields each of them, is sent what came of it,
and returns the answer. Only one is under way at a time; pushes, ticks and losses happen between any two of its steps.
"""

import logging
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias, TypeVar

from stratagem.errors import KeepError, RemoteError, RolledBack, StrategyError
from stratagem.parameters import protocol
from stratagem.parameters.authority import Applied, Authority, SnapshotSchedule
from stratagem.parameters.exchanges import Agreements, Gather, Gathers, Label
from stratagem.parameters.protocol import StoreConfig
from stratagem.runtime.wire import Fields
from stratagem.runtime.wire.error_translation import first_line

_HOLD_SECONDS = 30.0
LONG = 600.0
"""Seconds for a call that may have to wait for a disk."""


class State(Enum):
    """Where a model is in its life; the module's docstring draws the transitions."""

    EMPTY = "empty"
    WAITING_FOR_VALUES = "waiting for values"
    OPENING = "opening"
    OPEN = "open"
    HOLDING = "holding"
    ROLLING_BACK = "rolling back"
    LOST = "lost"


_TRAINING = {State.OPEN, State.HOLDING}
_NEXT = {
    State.EMPTY: {State.WAITING_FOR_VALUES, State.OPENING, State.LOST},
    State.WAITING_FOR_VALUES: {State.OPENING},
    State.OPENING: {State.OPEN, State.EMPTY, State.WAITING_FOR_VALUES, State.ROLLING_BACK, State.LOST},
    State.OPEN: {State.HOLDING, State.OPENING, State.ROLLING_BACK},
    State.HOLDING: {State.OPEN, State.OPENING, State.ROLLING_BACK},
    State.ROLLING_BACK: {State.OPENING, State.LOST},
    State.LOST: {State.OPENING},
}


@dataclass(frozen=True)
class AskStarts:
    """Ask every server which start of it is running; the result is their list."""


@dataclass(frozen=True)
class RestoreNewest:
    """Have all servers restore the newest snapshot that each of them can read; the result is a `Restored`, or `None`."""


@dataclass(frozen=True)
class CallServers:
    """Call these servers, each with its fields."""

    call: str
    fields: Mapping[int, Fields]
    seconds: float = protocol.CALL_SECONDS


@dataclass(frozen=True)
class RemoveSnapshots:
    """Remove all snapshots of this step and later ones: another history is about to make them."""

    first: int


@dataclass(frozen=True)
class WriteSnapshot:
    """Commit a snapshot once every server has written its values of the step, if `may_commit` says so."""

    step: int
    applied: Applied  # the last push of every worker that the values contain
    history: int  # which history the values are of


Instruction: TypeAlias = AskStarts | RestoreNewest | CallServers | RemoveSnapshots | WriteSnapshot
T = TypeVar("T")
Conversation: TypeAlias = Generator[Instruction, Any, T]


class Restored(NamedTuple):
    """A snapshot that all servers have restored; `reached` is the furthest step that any of them was at before."""

    step: int
    applied: Applied
    reached: int = 0


class Joining(NamedTuple):
    """A worker that wants to take part, and has described the model to every server."""

    worker: int
    incarnation: str  # which start of it
    is_chief: bool  # whether it may bring initial values
    starts: list[str]  # the start of each server to which it has described the model
    had_values: bool = False  # whether a server other than this one has values, or this worker has seen some
    epoch: str = ""  # the stretch of history that it has trained in; empty if in none
    reached: int = 0  # the step that it had come to in it


@dataclass
class Loss:
    """The cost of going back to a snapshot."""

    reached: int  # the furthest step that anybody knows of
    step: int  # the step of the snapshot
    before: str | None  # the epoch that was lost; `None` if nobody here knows it
    epoch: str | None  # the epoch that went on from the snapshot


class ModelCore:
    """The state machine of one model.

    Args:
        start: Which start of server 0 this is; makes the names of epochs unique.
    """

    def __init__(self, config: StoreConfig, start: str) -> None:
        self.state = State.EMPTY  # where the model is in its life; see the module
        self.is_open = False  # whether the state is OPEN or HOLDING
        # Names the stretch of history since the last opening; `None` before the first.
        self.epoch: str | None = None
        # Decides who takes part, and which pushes make which update.
        self.authority = Authority(config.rule, len(config.workers), config.participants)
        # Decides when snapshots are due, and which may be committed.
        self.schedule = SnapshotSchedule(None if config.snapshot_dir is None else config.snapshot_secs)
        self.gathers = Gathers()  # arrays that workers show each other
        self.notes: dict[str, bytes] = {}  # the chief's notes to the other workers, by their keys
        self.agreements = Agreements()  # decides which values all workers evaluate
        self.last_loss: Loss | None = None  # the cost of the last going back to a snapshot
        self.log_lines: list[tuple[int, str]] = []  # level and text of lines that are to be logged
        self._config = config
        self._name = config.name
        self._start = start
        self._openings = 0
        self._starts: list[str] = []
        self._reached = 0
        self._why_lost = ""
        self._holders: dict[str, float | None] = {}
        self._shares: dict[int, dict[int, Sequence[Any]]] = defaultdict(dict)
        self._digests: dict[int, tuple[str, bytes]] = {}

    def _go(self, state: State) -> None:
        """Change the state; nothing else does."""
        if state is self.state:
            return
        if state not in _NEXT[self.state]:
            raise RuntimeError(f"model {self._name}: from {self.state} to {state}")
        if self.is_open and state not in _TRAINING:
            # What was pushed and not decided is void, so that no later event can make an update of it.
            self._reached = self.authority.step
            self.authority.forget_pushes()
            self.schedule.void()
            self._holders.clear()
            self._shares.clear()
        self.state = state
        self.is_open = state in _TRAINING

    def opened(self, epoch: str) -> Authority:
        """Return the authority, for a caller that knows the present stretch of history.

        Raises:
            RolledBack: It knows another one, or this one is at its end.
        """
        if epoch != self.epoch or not self.is_open:
            raise RolledBack("the servers have gone back to an earlier step, or are about to")
        return self.authority

    def _say(self, level: int, text: str) -> None:
        self.log_lines.append((level, text))

    # Updates.

    def share_arrived(self, epoch: str, step: int, server: int, share: Sequence[Any]) -> list[Any] | None:
        """Take a server's share in the commons of an update; return all shares in order, once they are complete."""
        self.opened(epoch)
        shares = self._shares[step]
        shares[server] = share
        if len(shares) < len(self._config.participants):
            return None
        del self._shares[step]
        return [each for number in sorted(shares) for each in shares[number]]

    def broken(self, epoch: str, why: str) -> None:
        """Have all servers go back: an update failed, or values are half set."""
        if epoch == self.epoch and self.is_open:
            self._say(logging.ERROR, f"model {self._name} cannot go on and has to go back: {why}")
            self._go(State.ROLLING_BACK)

    # Workers.

    @property
    def expected(self) -> set[int]:
        """The workers that have come, or are waited for, and have not gone."""
        workers = range(len(self._config.workers))
        return {worker for worker in workers if not self.authority.member(worker).has_gone}

    def leave(self, worker: int, why: str) -> None:
        """Record that a worker has finished, or was given up."""
        self.authority.leave(worker, why)
        self.gathers.look(self.expected)
        self.authority.met(self.expected - self.gathers.waiting)

    def gather(self, worker: int, key: str, what: str, part: Any) -> Gather:
        """Take a worker's array; no update waits for that worker until all have brought theirs.

        Workers in step may come to a gather with different numbers of pushes, since some were dropped, or void.
        """
        gather = self.gathers.bring(worker, key, what, part, self.expected)
        if gather.is_complete:
            self.authority.met(gather.parts.keys() - self.gathers.waiting)
        else:
            self.authority.meet(worker)
        return gather

    def join(self, joining: Joining) -> Conversation[Fields]:
        """Let a worker take part.

        Returns:
            An answer: the worker is to train (with what a loss cost it), to bring values, or to wait and join again; or
            values are lost for good.
        """
        if not self.is_open or joining.starts != self._starts:
            answer = yield from self._recover(joining)
            if answer is not None:
                return answer
        # What an earlier start of this worker held, it cannot release any more.
        prefix = f"{self._config.workers[joining.worker]} "
        for holder in [each for each in self._holders if each.startswith(prefix)]:
            self.release(holder)
        self.authority.join(joining.worker, joining.incarnation)
        answer = {protocol.STATE: protocol.OK, "epoch": self.epoch, "step": self.authority.step}
        loss = self.last_loss
        if loss is not None and loss.epoch == self.epoch and joining.epoch not in ("", self.epoch):
            if loss.before in (None, joining.epoch) and joining.reached > loss.reached:
                loss.reached = joining.reached
                self._say_cost(loss)
            answer.update(reached=loss.reached, snapshot=loss.step)
        return answer

    # Opening, and going back.

    def _recover(self, joining: Joining) -> Conversation[Fields | None]:
        """Bring all servers to the newest snapshot and open there; return the answer if that is impossible."""
        try:
            starts = yield AskStarts()
            if starts != joining.starts:
                return _wait("a server was started again just now")
            if self.is_open:
                self._go(State.ROLLING_BACK)
            restored: Restored | None = (yield RestoreNewest()) if self.schedule.are_made else None
            if restored is None:
                return self._ask_for_values(joining)
            before, reached = self.epoch, self._reached
            yield from self._open(restored.step, restored.applied, starts, is_restored=True)
            self._count_cost(restored, joining, before, reached)
        except RemoteError as error:
            return _wait(f"a server does not answer: {first_line(error)}")
        return None

    def _ask_for_values(self, joining: Joining) -> Fields:
        if self.state is State.ROLLING_BACK or (self.state is State.EMPTY and joining.had_values):
            servers = self._config.servers
            changes = zip(servers, joining.starts, self._starts or joining.starts, strict=True)
            lost = ", ".join(task for task, now, before in changes if now != before) or servers[0]
            self._why_lost = (
                f"{lost} was lost with its part of model {self._name!r}, and there is no snapshot to go back to: "
                "give the strategy a snapshot_dir (stratagem run makes one by itself)"
            )
            self._go(State.LOST)
        if self.state is State.LOST:
            return {protocol.STATE: protocol.LOST, "why": self._why_lost}
        self._go(State.WAITING_FOR_VALUES)
        if joining.is_chief:
            return {protocol.STATE: protocol.WANTED}
        return _wait("the chief has not brought the initial values")

    def open(self, starts: list[str]) -> Conversation[None]:
        """Open with the initial values with which the chief has filled these starts of the servers."""
        if self.is_open:
            return
        if self.state is not State.WAITING_FOR_VALUES:
            raise RolledBack("nobody waits for initial values any more")
        yield from self._open(0, {}, starts)

    def _open(
        self,
        step: int,
        applied: Applied,
        starts: list[str],
        is_restored: bool = False,
        fallback: State | None = None,
    ) -> Conversation[None]:
        """Have all servers answer, with the values that they have; write a snapshot of values that come from none."""
        fallback = fallback or self.state
        self._go(State.OPENING)
        self._openings += 1
        epoch = f"{self._start}-{self._openings}"
        try:
            yield self._to_all(protocol.BEGIN, {"epoch": epoch})
            self.authority.rewind(step, applied)
            self.agreements.forget()
            self.schedule.rewound(step)
            self.epoch, self._starts = epoch, starts
            if self.schedule.are_made and not is_restored:
                copy = {"step": step, "now": True}  # as servers do by themselves right after an update
                yield CallServers(protocol.SNAPSHOT, dict.fromkeys(self._config.participants, copy), LONG)
                yield WriteSnapshot(step, applied, self.schedule.history)
        except BaseException:
            self._go(fallback)
            raise
        self._reached = 0
        self._go(State.OPEN)

    def _count_cost(self, restored: Restored, joining: Joining, before: str | None, reached: int) -> None:
        """Log the cost of going on from a snapshot, as far as anybody knows it."""
        # A server whose values the chief was replacing may be at any step, and a worker may know of an older history.
        if before is None:
            reached = max(restored.reached, joining.reached)
        reached = max(reached, restored.step)
        self.last_loss = Loss(reached, restored.step, before, self.epoch)
        if before is None and not joining.had_values and reached == restored.step:
            where = f"{self._config.snapshot_dir}/{self._name}"
            self._say(
                logging.WARNING,
                f"model {self._name} goes on from the snapshot of step {restored.step} in {where}: 0 updates lost, as far as anybody knows",
            )
        else:
            self._say_cost(self.last_loss)

    def _say_cost(self, loss: Loss) -> None:
        self._say(
            logging.WARNING,
            f"model {self._name} goes on from the snapshot of step {loss.step}: {loss.reached - loss.step} updates lost "
            f"(it had come to step {loss.reached})",
        )

    def _to_all(self, call: str, fields: Fields, seconds: float = protocol.CALL_SECONDS) -> CallServers:
        return CallServers(call, dict.fromkeys(range(len(self._config.servers)), fields), seconds)

    # Standing still.

    def hold(self, holder: str, now: float | None = None) -> int:
        """Let no update be decided until `release`, or for half a minute; without a time, until `release`.

        Several may hold at once.

        Returns:
            The step at which all servers stand still.

        Raises:
            RolledBack: The servers have to go back.
        """
        if not self.is_open:
            raise RolledBack("the servers are about to go back to an earlier step")
        self._holders[holder] = None if now is None else now + _HOLD_SECONDS
        self._go(State.HOLDING)
        return self.authority.hold()

    def release(self, holder: str) -> None:
        """Let updates be decided, as far as this holder is concerned."""
        self._holders.pop(holder, None)
        if self.state is State.HOLDING and not self._holders:
            self._go(State.OPEN)
            self.authority.release()

    # Reading the same data, and evaluating the same values.

    def check_same(self, worker: int, number: int, digest: bytes) -> None:
        """Raise unless a worker's data begin as those of the first one who asked.

        Raises:
            StrategyError: They differ.
        """
        task = self._config.workers[worker]
        first, expected = self._digests.setdefault(number, (task, digest))
        if expected != digest:
            raise StrategyError(f"the first batch of {task} is not that of {first}")

    def awaited(self, epoch: str, label: Label) -> list[int]:
        """Return the workers that have to come to the end of a fit before its values can be kept."""
        self.opened(epoch)
        return self.agreements.awaited(label, self.expected)

    def agree(self, epoch: str, label: Label) -> Conversation[None]:
        """Have all servers keep the parameters that workers evaluate under a label, unless they do.

        Raises:
            RolledBack: The servers have gone back meanwhile, or one could not.
        """
        self.opened(epoch)
        if self.agreements.is_kept(label):
            return
        holder = f"values of {label}"
        step = self.hold(holder)
        try:
            yield self._to_all(protocol.MARK, {"epoch": epoch, "label": list(label), "step": step}, LONG)
        except RemoteError as error:
            raise RolledBack(f"not all servers could keep their parameters: {first_line(error)}") from error
        finally:
            self.release(holder)
        self.agreements.keep(label)

    # Setting values.

    def assign(
        self, epoch: str, token: str, servers: Sequence[int], step: int | None
    ) -> Conversation[Fields]:
        """Let values that were prepared on the servers take effect on all of them, between two updates.

        Args:
            epoch: The stretch of history that the chief knows of.
            token: By which the servers know them.
            servers: Those that have some.
            step: The global step from which training goes on with them: history begins anew there, and what was
                pushed before is void. `None`: it goes on as it is, and what is under way is applied to them.

        Raises:
            RolledBack: The servers have gone back meanwhile, or have to.
        """
        self.opened(epoch)
        holder = f"values {token}"
        try:
            if step is None:
                # A snapshot that was decided before is of the old values: each server copies them before it takes these.
                fields = {"token": token, "step": self.hold(holder), "is_anew": False}
                yield CallServers(protocol.TAKE, dict.fromkeys(servers, fields), LONG)
            else:
                yield from self._replace(token, servers, step)
        except (RemoteError, KeepError) as error:
            # Some servers may have the new values and some the old.
            why = f"not all servers could take the values that the chief has set: {first_line(error)}"
            self.broken(epoch, why)
            raise RolledBack(why) from error
        finally:
            self.release(holder)  # after going back, if it failed: what was pushed meanwhile is void then
        return {protocol.STATE: protocol.OK, "epoch": self.epoch, "step": self.authority.step}

    def _replace(self, token: str, servers: Sequence[int], step: int) -> Conversation[None]:
        reached = self.authority.step
        self._go(State.OPENING)
        try:
            fields = {
                server: {"token": token if server in servers else "", "step": step, "is_anew": True}
                for server in range(len(self._config.servers))
            }
            yield CallServers(protocol.TAKE, fields, LONG)
            if self.schedule.are_made:
                yield RemoveSnapshots(step)
        except BaseException:
            self._go(State.ROLLING_BACK)
            raise
        self._say(
            logging.INFO, f"model {self._name}: the chief has set all values; from step {reached} to {step}"
        )
        yield from self._open(step, self.authority.applied, self._starts, fallback=State.ROLLING_BACK)

    # Snapshots, time, and the end.

    def snapshots_to_write(self) -> list[WriteSnapshot]:
        """Return the snapshots that have been decided since the last call."""
        decided, self.authority.snapshots = self.authority.snapshots, []
        return [WriteSnapshot(step, applied, self.schedule.history) for step, applied in decided]

    def tick(self, now: float, silent: Iterable[int] = ()) -> list[int]:
        """Take note of the time, and give up workers that came and have been silent for too long; return these.

        Returns:
            The workers that are given up.
        """
        for holder, end in list(self._holders.items()):
            if end is not None and now > end:
                self._say(
                    logging.WARNING,
                    f"model {self._name}: {holder} held it for too long and is not waited for",
                )
                self.release(holder)
        if self.is_open and self.schedule.begin_if_due(now, self.authority.step):
            self.authority.snapshot_wanted = True
        given_up = [worker for worker in silent if not self.authority.member(worker).has_gone]
        for worker in given_up:
            self.leave(worker, "given up")
        return given_up

    def stop(self) -> None:
        """Decide nothing more: this server ends."""
        if self.is_open:
            self._go(State.ROLLING_BACK)

    def names(self, workers: Iterable[int]) -> list[str]:
        """Return the tasks of workers."""
        return [self._config.workers[worker] for worker in workers]

    def describe(self) -> dict[str, Any]:
        """Describe the training, for the status."""
        book, loss = self.authority, self.last_loss
        return {
            "global_step": book.step,
            "rule": repr(self._config.rule),
            "state": self.state.value,
            "is_open": self.is_open,
            "staleness": {str(steps): count for steps, count in sorted(book.staleness.items())},
            "pushed": {task: book.pushed[worker] for worker, task in enumerate(self._config.workers)},
            "dropped": {
                self._config.workers[worker]: count for worker, count in sorted(book.dropped.items())
            },
            "active": self.names(sorted(book.active)),
            "waits_for": self.names(book.missing()),
            "last_cut": self.schedule.newest if self.schedule.are_made else None,
            "last_loss": None
            if loss is None
            else {"from": loss.reached, "to": loss.step, "updates": loss.reached - loss.step},
        }


def _wait(why: str) -> Fields:
    return {protocol.STATE: protocol.WAIT, "why": why}
