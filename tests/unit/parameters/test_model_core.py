"""The core of a model in a simulated world, in which everything is lost at any moment.

Values are the updates that they contain, so that every promise can be read off them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as some
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stratagem.errors import KeepError, RemoteError, RolledBack, TaskLost
from stratagem.parameters import protocol
from stratagem.parameters.authority import Applied
from stratagem.parameters.exchanges import Gather
from stratagem.parameters.model_core import (
    AskStarts,
    CallServers,
    Conversation,
    Instruction,
    Joining,
    ModelCore,
    RemoveSnapshots,
    Restored,
    RestoreNewest,
    State,
    WriteSnapshot,
)
from stratagem.parameters.protocol import StoreConfig
from stratagem.parameters.rules import APPLIED, COUNTED, Async, BoundedStaleness, Push, Sync, UpdateRule

WORKERS = 3
RARELY = some.integers(0, 11)
"""The number of somebody; in most cases there is nobody of that number, and nothing happens."""
RULES = [Async(), Sync(), Sync(2), Sync(5), BoundedStaleness(1)]


@dataclass(frozen=True)
class Values:
    """What a server holds: the step that they begin at, the updates since, and how often the chief has edited them."""

    base: int = 0
    updates: tuple[tuple[Push, ...], ...] = ()
    edits: int = 0

    @property
    def step(self) -> int:
        return self.base + len(self.updates)


@dataclass
class Server:
    start: str
    values: Values | None = None
    epoch: str | None = None
    staged: set[Push] = field(default_factory=set)
    copies: dict[int, Values] = field(default_factory=dict)

    def replace(self, values: Values) -> None:
        self.values, self.epoch = values, None
        self.staged.clear()
        self.copies.clear()


@dataclass
class Worker:
    number: int
    start: int = 0
    sequence: int = 0
    epoch: str = ""
    step: int = 0
    push: Push | None = None
    answered_by: set[int] = field(default_factory=set)
    is_connected: bool = False
    has_gone: bool = False
    is_paused: bool = False
    gathers: int = 0
    gather: Gather | None = None

    @property
    def is_meeting(self) -> bool:
        """Whether it waits for the other workers."""
        return self.gather is not None and not self.gather.is_complete

    @property
    def incarnation(self) -> str:
        return f"{self.number}.{self.start}"


@dataclass
class Snapshot:
    values: list[Values]
    applied: Applied


def config(rule: UpdateRule, servers: int, has_snapshots: bool) -> StoreConfig:
    tasks = tuple(f"ps {number}" for number in range(servers))
    workers = tuple(f"worker {number}" for number in range(WORKERS))
    where, participants = "/snapshots" if has_snapshots else None, tuple(range(servers))
    return StoreConfig(
        name="model", server=0, servers=tasks, workers=workers, participants=participants, leaves=(), slots=(), commons=(),
        rule=rule, update="", partials="", combine="", snapshot_dir=where, snapshot_secs=1.0, rejoin_timeout=60.0,
    )  # fmt: skip


class World(RuleBasedStateMachine):
    """Servers, workers and a disk around one core; every message may be lost, and every server at any moment."""

    @initialize(
        rule=some.sampled_from(RULES),
        servers=some.integers(1, 3),
        has_snapshots=some.sampled_from([True, True, True, False]),
        is_begun=some.sampled_from([True, True, True, False]),
    )
    def begin(self, rule: UpdateRule, servers: int, has_snapshots: bool, is_begun: bool) -> None:
        self.config = config(rule, servers, has_snapshots)
        self.clock = 0.0
        self.starts = 0
        self.servers = [Server(self.new_start()) for _ in range(servers)]
        self.workers = [Worker(number) for number in range(WORKERS)]
        self.disk: dict[int, Snapshot] = {}
        self.orders: list[WriteSnapshot] = []
        self.collected: list[tuple[WriteSnapshot, list[Values]]] = []
        self.prepared = 0
        self.begin_core()
        for number in (
            (0, *range(WORKERS)) if is_begun else ()
        ):  # the chief brings the values when it comes first
            self.join(number, is_smooth=True)

    def begin_core(self) -> None:
        self.core = ModelCore(self.config, self.servers[0].start)
        self.conversation: Conversation[Any] | None = None
        self.instruction: Instruction | None = None
        self.answer: Callable[[Any], None] = lambda answer: None
        self.refuse: Callable[[], None] = lambda: None
        self.history = Values()  # what all servers will have made once each has heard of all decisions
        self.reached_before = 0
        self.restored: Restored | None = None
        self.held_at: int | None = None

    def new_start(self) -> str:
        self.starts += 1
        return f"start {self.starts}"

    # What is known of the truth.

    def follow(self) -> None:
        """Take down what the core has decided by now."""
        if self.core.is_open:
            for step in range(self.history.step + 1, self.core.authority.step + 1):
                decision = self.core.authority.decision_of_step(step)
                assert decision is not None, f"nobody can learn what step {step} is made of"
                values = self.history
                self.history = Values(values.base, (*values.updates, decision.pushes), values.edits)

    def catch_up(self, server: Server, step: int) -> None:
        """A server has heard of a decision, and makes all updates up to it."""
        assert server.values is not None
        while server.values.step < step:
            decision = self.core.opened(server.epoch or "").decision_of_step(server.values.step + 1)
            assert decision is not None
            assert decision.step == server.values.step + 1
            assert server.staged >= set(decision.pushes), "an update is to be made of a push that is not here"
            server.staged -= set(decision.pushes)
            values = server.values
            server.values = Values(values.base, (*values.updates, decision.pushes), values.edits)
            if decision.snapshot:
                server.copies[decision.step] = server.values

    # Conversations, instruction by instruction.

    def converse(
        self, conversation: Conversation[Any], answer: Callable[[Any], None], refuse: Callable[[], None]
    ) -> None:
        self.conversation, self.answer, self.refuse = conversation, answer, refuse
        self.go_on(None)

    def go_on(self, result: Any, problem: Exception | None = None) -> None:
        conversation = self.conversation
        assert conversation is not None
        before, reached = self.core.state, self.core.authority.step
        lines = len(self.core.log_lines)
        try:
            self.instruction = conversation.send(result) if problem is None else conversation.throw(problem)
        except StopIteration as end:
            self.conversation, self.instruction = None, None
            if before is State.OPENING and self.core.is_open:
                self.see_opened(lines)
            assert self.core.state is not State.OPENING, "nobody would end it"
            self.follow()
            self.answer(end.value)
        except (RemoteError, KeepError):
            self.conversation, self.instruction = None, None
            assert self.core.state is not State.OPENING, "nobody would end it"
            self.follow()
            self.refuse()
        if self.core.state in (State.ROLLING_BACK, State.OPENING) and before in (State.OPEN, State.HOLDING):
            self.reached_before = reached

    def see_opened(self, lines: int) -> None:
        """The model is open again: with what, and what is said that it cost."""
        core, restored = self.core, self.restored
        self.history = self.servers[0].values or Values()
        assert core.authority.step == self.history.step
        if restored is None:
            return
        loss = core.last_loss
        assert loss is not None
        assert loss.step == restored.step == core.authority.step
        if loss.before is not None:
            assert loss.reached == max(self.reached_before, restored.step), (
                "the core itself knows how far it had come"
            )
        else:
            assert loss.reached >= max(restored.reached, restored.step), "a server, or a worker, knows more"
        said = " ".join(text for _, text in core.log_lines[lines:])
        assert f"{loss.reached - loss.step} updates lost" in said
        status = core.describe()["last_loss"]
        assert status == {"from": loss.reached, "to": loss.step, "updates": loss.reached - loss.step}
        self.restored = None

    @precondition(lambda self: self.instruction is not None)
    @rule(fails_at=some.one_of(some.none(), some.none(), some.integers(0, 2)))
    def carry_out(self, fails_at: int | None) -> None:
        """Do what the core asks for; with a failure, on some servers only."""
        instruction, problem = self.instruction, None
        result: Any = None
        try:
            match instruction:
                case AskStarts():
                    result = [server.start for server in self.servers]
                    self.fail(fails_at, 0)
                case RestoreNewest():
                    result = self.restore(fails_at)
                case CallServers():
                    self.call(instruction, fails_at)
                case RemoveSnapshots(first):
                    self.disk = {step: kept for step, kept in self.disk.items() if step < first}
                    self.fail(fails_at, 0)
                case WriteSnapshot():
                    self.fail(fails_at, 0)
                    self.commit(instruction, [self.held(server) for server in self.servers])
        except (RemoteError, KeepError) as error:
            problem = error
        self.go_on(result, problem)

    def fail(self, fails_at: int | None, server: int) -> None:
        if fails_at == server:
            raise TaskLost("a server does not answer")

    def held(self, server: Server) -> Values:
        if server.values is None:
            raise RolledBack("there are no values here")
        return server.values

    def restore(self, fails_at: int | None) -> Restored | None:
        if not self.disk:
            self.restored = None
            return None
        step = max(self.disk)
        kept, reached = self.disk[step], 0
        for number, server in enumerate(self.servers):
            self.fail(fails_at, number)
            reached = max(reached, server.values.step if server.values is not None else 0)
            server.replace(kept.values[number])
        self.restored = Restored(step, kept.applied, reached)
        return self.restored

    def call(self, instruction: CallServers, fails_at: int | None) -> None:
        for number, fields in instruction.fields.items():
            self.fail(fails_at, number)
            server = self.servers[number]
            values = self.held(server)
            match instruction.call:
                case protocol.BEGIN:
                    server.epoch = fields["epoch"]
                case protocol.MARK:
                    if server.epoch != fields["epoch"]:
                        raise RolledBack("another epoch")
                    self.catch_up(server, fields["step"])
                    assert self.held(server).step == fields["step"], (
                        "values of several steps are evaluated together"
                    )
                case protocol.TAKE if fields["is_anew"]:
                    self.restored = None
                    server.replace(Values(fields["step"], (), self.prepared))
                case protocol.TAKE:
                    if server.epoch != self.core.epoch:
                        raise RolledBack("another epoch")
                    self.catch_up(server, fields["step"])
                    values = self.held(server)
                    assert values.step == fields["step"], "values are set between different updates"
                    server.values = Values(values.base, values.updates, self.prepared)

    # Workers.

    @precondition(lambda self: self.conversation is None)
    @rule(number=some.integers(0, WORKERS - 1), is_smooth=some.sampled_from([True, True, False]))
    def join(self, number: int, is_smooth: bool) -> None:
        worker = self.workers[number]
        if worker.is_connected or worker.has_gone:
            return
        starts = [server.start for server in self.servers]
        has_values = any(server.epoch is not None for server in self.servers[1:])
        joining = Joining(
            number,
            worker.incarnation,
            number == 0,
            starts,
            bool(worker.epoch) or has_values,
            worker.epoch,
            worker.step,
        )

        def answered(answer: dict[str, Any]) -> None:
            self.joined(worker, starts, answer)

        def refused() -> None:
            pass

        self.converse(self.core.join(joining), answered, refused)
        while is_smooth and self.instruction is not None:
            self.carry_out(None)

    def joined(self, worker: Worker, starts: list[str], answer: dict[str, Any]) -> None:
        match answer[protocol.STATE]:
            case protocol.OK:
                assert self.core.is_open
                if "reached" in answer:
                    loss = self.core.last_loss
                    assert loss is not None
                    assert answer["reached"] == loss.reached
                    assert answer["snapshot"] == loss.step
                if worker.epoch != answer["epoch"]:
                    worker.push = None  # void
                worker.answered_by.clear()
                worker.epoch, worker.step = answer["epoch"], answer["step"]
                worker.is_connected = True
            case protocol.WANTED:
                for server in self.servers:
                    server.replace(Values())
                self.converse(self.core.open(starts), lambda _: None, lambda: None)
            case protocol.LOST:
                assert not self.disk, "there is a snapshot to go back to"

    @rule(number=some.integers(0, WORKERS - 1))
    def push(self, number: int) -> None:
        worker = self.workers[number]
        if worker.is_connected and worker.push is None and not worker.is_meeting:
            worker.sequence += 1
            worker.is_paused = False
            worker.push = Push(number, worker.incarnation, worker.sequence, worker.step, 1)
            worker.answered_by = set()

    @rule(
        number=some.integers(0, WORKERS - 1),
        server=some.integers(0, 2),
        loses=some.sampled_from(["", "", "", "", "call", "notice", "answer"]),
    )
    def deliver(self, number: int, server: int, loses: str) -> None:
        """A worker sends a server its part, or asks what became of it; a call, a notice or an answer may be lost."""
        worker, at = self.workers[number], server % len(self.servers)
        if worker.push is None or not worker.is_connected or at in worker.answered_by:
            return
        try:
            if loses == "call":
                raise TaskLost("lost")
            kind = self.delivered(worker, worker.push, at, loses == "notice")
            if loses == "answer":
                raise TaskLost("lost")
        except RemoteError:
            worker.is_connected = False
            return
        if kind is not None:
            worker.answered_by.add(at)
        if len(worker.answered_by) == len(self.servers):
            worker.push, worker.step = None, self.core.authority.step

    @rule(number=some.integers(0, WORKERS - 1), loses=some.sampled_from(["", "", "answer"]))
    def train(self, number: int, loses: str) -> None:
        """A worker computes gradients, and brings them to all servers."""
        self.push(number)
        for server in range(len(self.servers)):
            self.deliver(number, server, loses)

    @rule(snapshot=some.sampled_from(["", "collected", "committed"]))
    def train_all(self, snapshot: str) -> None:
        """All workers train for a while, perhaps long enough for a snapshot."""
        for seconds in (1.0, 1.0) if snapshot else (0.0,):
            for number in range(WORKERS):
                self.train(number, "")
            self.tick(seconds)
        for number in range(WORKERS):
            self.train(number, "")
        if snapshot:
            self.collect_shards(is_lost=False)
        if snapshot == "committed" and self.collected:
            self.commit_snapshot()

    def delivered(self, worker: Worker, push: Push, at: int, is_lost: bool) -> str | None:
        server = self.servers[at]
        if server.epoch is None or server.epoch != worker.epoch:
            raise RolledBack("another epoch")
        server.staged.add(push)
        if is_lost:
            raise TaskLost("server 0 did not hear of it")
        decision = self.core.opened(worker.epoch).arrived(push, at)
        self.follow()
        if decision is None:
            return None
        self.catch_up(server, decision.step)
        if decision.kind != COUNTED:
            server.staged.discard(push)
        if decision.kind == APPLIED:
            assert push in decision.pushes
        if self.core.authority.waits_for(worker.number):
            return None
        return decision.kind

    @rule(number=RARELY)
    def restart_worker(self, number: int) -> None:
        if number >= WORKERS:
            return
        worker = self.workers[number]
        if not worker.has_gone:
            self.workers[number] = Worker(number, worker.start + 1)

    @rule(number=RARELY, ends=some.sampled_from([False, False, False, True]))
    def pause_or_finish(self, number: int, ends: bool) -> None:
        if number >= WORKERS:
            return
        worker = self.workers[number]
        if worker.push is not None or not worker.is_connected:
            return
        worker.is_paused = True
        if ends:
            worker.has_gone, worker.is_connected = True, False
            self.core.leave(number, "finished")
        else:
            self.core.authority.pause(number)
        self.follow()

    @rule(number=RARELY)
    def gather(self, number: int) -> None:
        """A worker comes to where it waits for all the others, whatever they have still to do; or asks again."""
        if number >= WORKERS:
            return
        worker = self.workers[number]
        if worker.push is None and worker.is_connected:
            worker.gathers += not worker.is_meeting
            worker.gather = self.core.gather(number, f"{worker.incarnation} {worker.gathers}", "reduce", None)
            self.follow()

    # Losses, time, values that are read and set.

    @rule(number=RARELY)
    def lose_server(self, number: int) -> None:
        if number >= len(self.servers):
            return
        self.servers[number] = Server(self.new_start())
        if number == 0:
            if self.conversation is not None:
                self.conversation.close()
            self.begin_core()
            for worker in self.workers:
                worker.is_connected = False
                if worker.has_gone:
                    self.core.leave(worker.number, "finished")
            self.orders.clear()
            self.collected.clear()

    @rule(number=RARELY)
    def update_fails(self, number: int) -> None:
        server = self.servers[number % len(self.servers)]
        if number >= len(self.servers):
            return
        if self.core.is_open and self.core.epoch is not None and server.epoch == self.core.epoch:
            server.epoch = None
            self.reached_before = self.core.authority.step
            self.core.broken(self.core.epoch, "the update failed")

    @rule(seconds=some.sampled_from([0.1, 0.5, 1.0, 31.0]))
    def tick(self, seconds: float) -> None:
        self.clock += seconds
        self.core.tick(self.clock)
        self.follow()
        self.orders += self.core.snapshots_to_write()

    @rule(is_lost=some.sampled_from([False, False, True]))
    def collect_shards(self, is_lost: bool) -> None:
        """Server 0 has heard of all shards of a snapshot, or cannot."""
        self.orders += self.core.snapshots_to_write()
        if not self.orders:
            return
        order = self.orders.pop(0)
        try:
            self.fail(0 if is_lost else None, 0)
            for server in self.servers:  # to which the decision has to come, and does as long as workers push
                if server.epoch == self.core.epoch and self.core.is_open:
                    self.catch_up(server, order.step)
            self.collected.append((order, [self.copy(server, order.step) for server in self.servers]))
        except (RemoteError, KeepError):
            self.core.schedule.finished(order.step, order.history, self.clock, False)

    @precondition(lambda self: self.collected)
    @rule()
    def commit_snapshot(self) -> None:
        """Server 0 commits it; anything may have happened since it heard of the shards."""
        order, values = self.collected.pop(0)
        is_written = True
        try:
            self.commit(order, values)
        except (RemoteError, KeepError):
            is_written = False
        self.core.schedule.finished(order.step, order.history, self.clock, is_written)

    def copy(self, server: Server, step: int) -> Values:
        if step not in server.copies:
            raise KeepError("it is not written here")
        return server.copies[step]

    def commit(self, order: WriteSnapshot, values: list[Values]) -> None:
        if not self.core.schedule.may_commit(order.history):
            raise RolledBack("another history")
        if self.disk and order.step <= max(self.disk):
            raise KeepError("there is a later one")
        history = self.history if self.core.is_open else values[0]
        assert len(set(values)) == 1, "the shards are of different values"
        assert values[0].step == order.step
        assert values[0].updates == history.updates[: len(values[0].updates)], "it is of another history"
        self.disk[order.step] = Snapshot(values, order.applied)
        for step in sorted(self.disk)[:-2]:
            del self.disk[step]

    @rule(is_held=some.booleans(), number=some.integers(0, WORKERS - 1))
    def hold_or_release(self, is_held: bool, number: int) -> None:
        worker = self.workers[number]
        if not worker.is_connected or not self.core.is_open:
            return
        holder = f"worker {number} ({worker.incarnation})"
        if is_held:
            self.held_at = self.core.hold(holder, self.clock)
        else:
            self.core.release(holder)
            self.follow()

    @precondition(lambda self: self.conversation is None)
    @rule(step=some.one_of(some.none(), some.integers(0, 12)))
    def assign(self, step: int | None) -> None:
        chief = self.workers[0]
        if chief.is_connected and chief.epoch == self.core.epoch and self.core.is_open:
            self.prepared += 1
            numbers = range(len(self.servers))

            def assigned(answer: dict[str, Any]) -> None:
                if step is None:
                    values = self.history
                    self.history = Values(values.base, values.updates, self.prepared)
                elif chief.epoch != answer["epoch"]:
                    chief.push, chief.epoch, chief.step = None, answer["epoch"], answer["step"]

            def refused() -> None:
                chief.is_connected = False

            self.converse(self.core.assign(chief.epoch, "token", list(numbers), step), assigned, refused)

    @precondition(lambda self: self.conversation is None)
    @rule(number=some.integers(0, WORKERS - 1), label=some.tuples(some.integers(1, 3), some.integers(1, 3)))
    def agree(self, number: int, label: tuple[int, int]) -> None:
        worker = self.workers[number]
        if worker.is_connected and worker.epoch == self.core.epoch and self.core.is_open:
            self.converse(self.core.agree(worker.epoch, label), lambda _: None, lambda: None)

    # What always holds.

    @invariant()
    def every_server_makes_the_same_updates_once(self) -> None:
        if not hasattr(self, "core"):
            return
        for server in self.servers:
            if server.values is None:
                continue
            pushes = [push for update in server.values.updates for push in update]
            assert len(pushes) == len(set(pushes)), "a push was applied twice"
            if self.core.is_open and server.epoch == self.core.epoch:
                updates = server.values.updates
                assert server.values.base == self.history.base
                assert updates == self.history.updates[: len(updates)], "servers make different updates"
        if self.core.is_open:
            assert self.core.authority.step == self.history.step
        if self.core.state is not State.HOLDING:
            self.held_at = None
        elif self.held_at is not None:
            assert self.core.authority.step == self.held_at, "an update was decided while somebody reads"

    def teardown(self) -> None:
        """Once losses stop, everybody is answered."""
        if not hasattr(self, "core"):
            return
        answered = set[int]()
        for _ in range(40):
            self.clock += 31.0
            self.core.tick(self.clock)
            self.follow()
            while self.instruction is not None:
                self.carry_out(None)
            for worker in self.workers:
                if worker.has_gone:
                    answered.add(worker.number)
                    continue
                if worker.epoch != self.core.epoch or not self.core.is_open:
                    worker.is_connected = False
                self.join(worker.number, is_smooth=True)
                if self.core.state is State.LOST:
                    assert not self.disk
                    return
                if worker.is_meeting or worker.number in answered:
                    self.gather(worker.number)
                    continue
                self.push(worker.number)
                for server in range(len(self.servers)):
                    self.deliver(worker.number, server, "")
                    self.every_server_makes_the_same_updates_once()
                if worker.is_connected and worker.push is None:
                    answered.add(worker.number)
        waiting = {worker.number for worker in self.workers} - answered
        assert not waiting, f"{waiting} wait for ever"
        for each in self.servers:
            if self.core.is_open and each.epoch == self.core.epoch:
                self.catch_up(each, self.core.authority.step)
                assert each.values == self.history, "the servers have different values in the end"


def test_whatever_is_lost_and_whenever_every_promise_is_kept() -> None:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    # The same histories in every run, so that a failure can be had again.
    few = settings(
        max_examples=300,
        derandomize=True,
        stateful_step_count=60,
        deadline=None,
        suppress_health_check=checks,
    )
    run_state_machine_as_test(World, settings=few)
