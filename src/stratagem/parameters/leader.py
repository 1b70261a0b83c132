"""The leader of a model's servers: server 0's shell around the core, and server 0 as the other servers see it.

The shell has one lock, and carries out what the core asks for on all servers, on disk and in time.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import numpy as np

from stratagem.errors import KeepError, RemoteError, RolledBack, StratagemError
from stratagem.keep import Manifest, ShardRecord, StoredSnapshot, TensorEntry
from stratagem.parameters import model_core, protocol
from stratagem.parameters.authority import Decision
from stratagem.parameters.model_core import LONG, Conversation, ModelCore, Restored, WriteSnapshot
from stratagem.parameters.part import KEPT_SNAPSHOTS, ModelPart, shard_name
from stratagem.parameters.protocol import StoreConfig
from stratagem.parameters.rules import Push
from stratagem.parameters.store import Lead
from stratagem.runtime.fan_out import fan_out
from stratagem.runtime.peers import Peers
from stratagem.runtime.programs import ProgramCache
from stratagem.runtime.wire import Fields, Response
from stratagem.runtime.wire.arrays import Array

_log = logging.getLogger("stratagem")
T = TypeVar("T")


class Leader(Lead):
    """Leads the servers of one model.

    Args:
        start: Which start of this server it is.
        news: Called when there may be something to do for the thread that looks after the model; returns at once.
    """

    def __init__(
        self,
        config: StoreConfig,
        programs: ProgramCache,
        device: jax.Device,
        peers: Peers,
        start: str,
        news: Callable[[], None],
    ) -> None:
        self.part = ModelPart(config, programs, device, self)  # server 0's own part
        self.core = ModelCore(config, start)  # the state machine that decides; it is changed under a lock
        self.news = news
        # Whether no other server has part in updates. Then nobody is woken when a push is decided: the thread that
        # makes the update does so afterwards, with `wake`.
        self.is_alone = len(config.participants) == 1
        self._config = config
        self._peers = peers
        self._start = start
        self._commons: dict[tuple[str, int], Sequence[Array]] = {}
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # One conversation at a time; and no snapshot is committed while the servers go back, or begin anew.
        self._conversing = threading.Lock()
        self._committing = threading.Lock()
        count = len(config.servers)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="stratagem-commits")

    # Pushes.

    def decide(
        self, epoch: str, push: Push, end: float, is_here: bool, server: int = 0
    ) -> tuple[Decision | None, list[str]]:
        core = self.core
        with self._lock:
            if not is_here:
                decision = core.opened(epoch).decision(*push[:3])
            else:
                before = core.authority.decided
                decision = core.opened(epoch).arrived(push, server)
                if core.authority.snapshots:
                    self.news()
                if decision is None and (left := end - time.monotonic()) > 0:
                    decision = self._changed.wait_for(lambda: core.opened(epoch).decision(*push[:3]), left)
                elif not self.is_alone and core.authority.decided != before:
                    self._notify()
            return decision, [] if decision is not None else core.names(core.authority.missing())

    def update(self, epoch: str, step: int) -> Decision | None:
        with self._lock:
            return self.core.opened(epoch).decision_of_step(step)

    def commons(self, epoch: str, step: int, partials: Sequence[Array], server: int = 0) -> Sequence[Array]:
        """Take a server's share, and wait for the commons; the thread that brings the last share combines them."""
        with self._lock:
            shares = self.core.share_arrived(epoch, step, server, [np.array(partial) for partial in partials])
            if shares is not None:
                self._commons = {key: self._commons[key] for key in self._commons if key == (epoch, step - 1)}
                self._commons[epoch, step] = self.part.filled.combine(shares)
                self._notify()
            while (epoch, step) not in self._commons:
                self._changed.wait(protocol.PATIENCE)
                self.core.opened(epoch)
            return self._commons[epoch, step]

    def broken(self, epoch: str, why: str) -> None:
        self.now(lambda core: core.broken(epoch, why))

    def may_go_on(self, epoch: str, worker: int, end: float) -> list[int]:
        """Wait until a worker may go on, at most until the end; return the workers that it still has to wait for."""
        with self._lock:
            waits_for = self.core.authority.waits_for(worker)
            if waits_for and self.is_alone:
                self._notify()  # the others need not wait until this worker is answered
            while waits_for and self._changed.wait(max(0.0, end - time.monotonic())):
                waits_for = self.core.opened(epoch).waits_for(worker)
            return waits_for

    def wake(self) -> None:
        """Wake those who wait for decisions."""
        with self._lock:
            self._changed.notify_all()

    def _notify(self) -> None:
        self._changed.notify_all()
        self.news()

    # Other events.

    def now(self, event: Callable[[ModelCore], T]) -> T:
        """Let the core have an event that takes no instructions, and wake those who wait for a change."""
        with self._changing() as core:
            return event(core)

    def converse(self, begin: Callable[[ModelCore], Conversation[T]]) -> T:
        """Carry out what the core asks for, until it has the answer. The lock is held only while the core decides."""
        with self._conversing:
            conversation = begin(self.core)
            result: Any = None
            problem: Exception | None = None
            while True:
                with self._changing():
                    try:
                        instruction = (
                            conversation.send(result) if problem is None else conversation.throw(problem)
                        )
                    except StopIteration as end:
                        return end.value  # type: ignore[no-any-return]
                try:
                    result, problem = self._carry_out(instruction), None
                except Exception as error:  # noqa: BLE001  the core's to judge
                    problem = error

    def until(self, is_so: Callable[[ModelCore], bool], end: float) -> bool:
        """Wait until something is so, or the end; return whether it is."""
        with self._lock:
            return self._changed.wait_for(lambda: is_so(self.core), max(0.0, end - time.monotonic()))

    @contextmanager
    def _changing(self) -> Iterator[ModelCore]:
        """Hold the lock; then wake those who wait for a change, and log the core's lines."""
        try:
            with self._lock:
                yield self.core
        finally:
            with self._lock:
                self._notify()
                lines, self.core.log_lines = self.core.log_lines, []
            for level, text in lines:
                _log.log(level, "%s", text)

    def close(self) -> None:
        """Decide nothing more, and end its threads."""
        self.now(ModelCore.stop)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # Instructions.

    def _carry_out(self, instruction: model_core.Instruction) -> Any:
        match instruction:
            case model_core.AskStarts():
                return [self._start, *map(self._start_of, self._config.servers[1:])]
            case model_core.CallServers(call, fields, seconds):
                return self._call_all(call, fields, seconds)
            case model_core.RestoreNewest():
                with self._committing:
                    return self._restore()
            case model_core.RemoveSnapshots(first):
                with self._committing:
                    self._remove(first)
            case WriteSnapshot():
                self._write(instruction)
        return None

    def _start_of(self, task: str) -> str:
        """Return the incarnation of another server, which has to answer now."""
        self._peers[task].call("ping", timeout=protocol.CALL_SECONDS, wait=False)
        return str(self._peers[task].info["incarnation"])

    def _call_all(self, call: str, fields: Mapping[int, Fields], seconds: float) -> list[Fields]:
        """Call servers at once, each with its fields; return what they answer."""
        return fan_out(lambda server: self._call(server, call, fields[server], seconds), list(fields))

    def _call(self, server: int, call: str, fields: Fields, seconds: float) -> Fields:
        """Call a server about the model, without waiting for one that is not there; number 0 is this one."""
        if server == 0:
            return self.part.obey(call, fields, seconds)
        peer = self._peers[self._config.servers[server]]
        answer = peer.call(call, {"model": self._config.name, **fields}, timeout=seconds, wait=False).fields
        if answer.get(protocol.STATE) == protocol.ROLLED_BACK:
            raise RolledBack(str(answer["why"]))
        return answer

    # Snapshots.

    def write_snapshots(self) -> None:
        """Commit, in threads of their own, the snapshots that have been decided."""
        with self._lock:
            orders = self.core.snapshots_to_write()
        for order in orders:
            self._threads.submit(self._write, order)

    def _write(self, order: WriteSnapshot) -> None:
        """Commit a snapshot when all servers have written it; the log says what went wrong, too."""
        step, config, snapshots = order.step, self._config, self.part.writer.snapshots
        is_written = False
        try:
            records = fan_out(lambda server: self._record(server, order), range(len(config.servers)))
            tensors = {
                name: TensorEntry.join([(records[server], key) for server, key in pieces])
                for name, pieces in config.tensors
            }
            applied = {str(worker): list(push) for worker, push in order.applied.items()}
            with self._committing:
                if not self.now(lambda core: core.schedule.may_commit(order.history)):
                    raise RolledBack("the servers have gone on from another step since")
                snapshots.commit(Manifest(step, records, tensors, {"applied": applied, "model": config.name}))
            _log.info("model %s: a snapshot of step %d is in %s", config.name, step, snapshots.root)
            is_written = True
        except Exception as error:  # training goes on without it, unless it is needed
            _log.warning("model %s: there is no snapshot of step %d: %s", config.name, step, error)
            raise
        finally:
            self.now(lambda core: core.schedule.finished(step, order.history, time.monotonic(), is_written))
        try:
            self._forget_elsewhere(snapshots.prune(KEPT_SNAPSHOTS))
        except StratagemError as error:
            _log.warning("model %s: old snapshots could not be removed: %s", config.name, error)

    def _record(self, server: int, order: WriteSnapshot) -> ShardRecord:
        fields = {"step": order.step, "now": False}
        if server not in self._config.participants:  # it hears of no update
            self._call(server, protocol.SNAPSHOT, {**fields, "now": True}, LONG)
        return ShardRecord.from_dict(self._call(server, protocol.SNAPSHOT, fields, LONG)["record"])

    def _restore(self) -> Restored | None:
        snapshots = self.part.writer.snapshots
        reached = 0

        def restore(snapshot: StoredSnapshot) -> None:
            nonlocal reached
            manifest = snapshot.manifest
            fields = {
                server: {"step": manifest.step, "record": manifest.record(shard_name(server)).to_dict()}
                for server in range(len(self._config.servers))
            }
            answers = self._call_all(protocol.RESTORE, fields, protocol.CALL_SECONDS)
            reached = max(reached, *(answer["reached"] for answer in answers))
            for answer in answers:
                if answer["problem"]:
                    raise KeepError(answer["problem"])

        snapshot = snapshots.newest_readable(restore)
        if snapshot is None:
            return None
        step = snapshot.manifest.step
        snapshots.rewind(step)
        applied = {int(worker): tuple(push) for worker, push in snapshot.manifest.meta["applied"].items()}
        return Restored(step, applied, reached)

    def _remove(self, first: int) -> None:
        snapshots = self.part.writer.snapshots
        later = [step for step in snapshots.steps() if step >= first]
        for step in later:
            snapshots.remove(step)
        self._forget_elsewhere(later)

    def _forget_elsewhere(self, steps: list[int]) -> None:
        """Remove snapshots from the other servers' disks, which may be their own."""
        for server in range(1, len(self._config.servers)):
            self._call(server, protocol.FORGET, {"steps": steps}, protocol.CALL_SECONDS)


class Follower(Lead):
    """Server 0 as another server sees it."""

    def __init__(self, config: StoreConfig, peers: Peers) -> None:
        self._config = config
        self._peers = peers

    def decide(self, epoch: str, push: Push, end: float, is_here: bool) -> tuple[Decision | None, list[str]]:
        seconds = max(0.0, end - time.monotonic())
        fields = {"epoch": epoch, "push": list(push), "is_here": is_here, "seconds": seconds}
        answer = self._ask(protocol.ARRIVED, fields).fields
        if answer[protocol.STATE] == protocol.PENDING:
            return None, answer["waiting"]
        return Decision.from_fields(*answer["decision"]), []

    def update(self, epoch: str, step: int) -> Decision | None:
        answer = self._ask(protocol.DECISION, {"epoch": epoch, "step": step}).fields
        return Decision.from_fields(*answer["decision"]) if answer["decision"] else None

    def commons(self, epoch: str, step: int, partials: Sequence[Array]) -> Sequence[Array]:
        return self._ask(protocol.PARTIALS, {"epoch": epoch, "step": step}, partials).tensors

    def broken(self, epoch: str, why: str) -> None:
        self._ask(protocol.BROKEN, {"epoch": epoch, "why": why})

    def _ask(self, call: str, fields: Fields, tensors: Sequence[Array] = ()) -> Response:
        """Ask server 0. If it has gone back, or has gone, everything that was pushed here is void.

        Raises:
            RolledBack: That is so.
        """
        config = self._config
        fields = {"model": config.name, "server": config.server, **fields}
        try:
            server_0 = self._peers[config.servers[0]]
            answer = server_0.call(call, fields, tensors, timeout=protocol.CALL_SECONDS, wait=False)
        except RemoteError as error:
            raise RolledBack(f"{config.servers[0]} does not answer: {error}") from error
        if answer.fields[protocol.STATE] == protocol.ROLLED_BACK:
            raise RolledBack("the servers have gone back to an earlier step")
        return answer
