"""Server 0's shell around the core of a model: carries out its instructions, on all servers, on disk and in time."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from stratagem.errors import KeepError, RolledBack, StratagemError
from stratagem.keep import Cut, Manifest, ShardRecord, TensorEntry
from stratagem.parameters import model_core, protocol
from stratagem.parameters.agreements import Label
from stratagem.parameters.cutting import KEPT_CUTS, shard_name
from stratagem.parameters.decider import Decider
from stratagem.parameters.fellows import Fellows
from stratagem.parameters.model_core import LONG, Conversation, Joining, ModelCore, Restored, WriteSnapshot
from stratagem.parameters.part import ModelPart
from stratagem.runtime.peers import Peers
from stratagem.runtime.wire import Fields
from stratagem.runtime.wire.failures import first_line

_log = logging.getLogger("stratagem")
T = TypeVar("T")


class Leader:
    """Leads the servers of one model.

    Args:
        part: Server 0's own part.
        decider: The core behind its lock.
        peers: The other servers.
        start: Which start of this server it is.

    Attributes:
        part: See above.
        decider: See above.
    """

    def __init__(self, part: ModelPart, decider: Decider, peers: Peers, start: str) -> None:
        self.part = part
        self.decider = decider
        self._start = start
        self._changed = decider.changed
        self._servers = Fellows(part.config, peers)
        # One conversation at a time; and no snapshot is committed while the servers go back, or begin anew.
        self._conversing = threading.Lock()
        self._committing = threading.Lock()
        count = len(part.config.servers)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="stratagem-snapshots")

    # Events.

    def now(self, event: Callable[[ModelCore], T]) -> T:
        """Let the core have an event that takes no instructions, and tell of the change."""
        with self._changed:
            try:
                return event(self.decider.core)
            finally:
                self._changed.notify_all()

    def until(self, is_so: Callable[[ModelCore], bool], end: float) -> bool:
        """Wait until something is so, or the end; whether it is."""
        with self._changed:
            while not is_so(self.decider.core):
                if not self._changed.wait(max(0.0, end - time.monotonic())):
                    return is_so(self.decider.core)
            return True

    def join(self, joining: Joining) -> Fields:
        """A worker wants to take part; what it is to do."""
        return self._converse(lambda core: core.join(joining))

    def open(self, starts: list[str]) -> None:
        """The chief has brought values to all servers."""
        self._converse(lambda core: core.open(starts))

    def assign(self, epoch: str, token: str, servers: list[int], step: int | None) -> Fields:
        """The chief has prepared values on servers, which are to take effect."""
        return self._converse(lambda core: core.assign(epoch, token, servers, step))

    def agree(self, epoch: str, label: Label, waits: bool, end: float) -> list[int]:
        """A worker wants the values that all evaluate to be kept; whom it has to wait for, if not all have come."""
        if waits and not self.until(lambda core: not core.awaited(epoch, label), end):
            return self.now(lambda core: core.awaited(epoch, label))
        self._converse(lambda core: core.agree(epoch, label))
        return []

    def tick(self, now: float, silent: list[int]) -> list[int]:
        """Time has passed, and these workers are silent; those that are given up."""
        with self._changed:
            core = self.decider.core
            state = core.state
            given_up = core.tick(now, silent)
            if given_up or core.state is not state:
                self._changed.notify_all()
        self.decider.log()
        return given_up

    def write_snapshots(self) -> None:
        """Have the snapshots finished that have been decided."""
        with self._changed.lock:
            orders = self.decider.core.snapshots_to_write()
        for order in orders:
            self._threads.submit(self._write, order)

    # Instructions.

    def _converse(self, begin: Callable[[ModelCore], Conversation[T]]) -> T:
        """Carry out what the core asks for, until it has the answer. The lock is held only while the core decides."""
        with self._conversing:
            conversation = begin(self.decider.core)
            result: Any = None
            problem: Exception | None = None
            while True:
                try:
                    with self._changed:
                        instruction = (
                            conversation.send(result) if problem is None else conversation.throw(problem)
                        )
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                finally:
                    with self._changed:
                        self._changed.notify_all()
                    self.decider.log()
                try:
                    result, problem = self._carry_out(instruction), None
                except Exception as error:  # noqa: BLE001  the core's to judge
                    problem = error

    def _carry_out(self, instruction: model_core.Instruction) -> Any:
        match instruction:
            case model_core.AskStarts():
                return [self._start, *self._servers.incarnations()]
            case model_core.CallServers(call, fields, seconds):
                return self._call_all(call, fields, seconds)
            case model_core.RestoreNewest():
                with self._committing:
                    return self._restore()
            case model_core.RemoveSnapshots(first):
                with self._committing:
                    self._remove(first)
            case WriteSnapshot():
                self._call_all(protocol.CUT, self._for_all({"step": instruction.step, "now": True}), LONG)
                problem = self._write(instruction)
                if problem is not None:
                    raise problem
        return None

    def _for_all(self, fields: Fields) -> dict[int, Fields]:
        return dict.fromkeys(range(len(self.part.config.servers)), fields)

    def _call_all(self, call: str, fields: Mapping[int, Fields], seconds: float) -> dict[int, Fields]:
        """Call servers at once; what each of them answers."""
        answers = self._servers.everywhere(
            lambda server: self._call(server, call, fields[server], seconds) if server in fields else {}
        )
        return dict(enumerate(answers))

    def _call(self, server: int, call: str, fields: Fields, seconds: float) -> Fields:
        if server == 0:
            return self.part.obey(call, fields, seconds)
        answer = self._servers.call(server, call, fields, seconds=seconds)
        if answer.get(protocol.STATE) == protocol.ROLLED_BACK:
            raise RolledBack(str(answer["why"]))
        return answer

    # Snapshots.

    def _write(self, order: WriteSnapshot) -> Exception | None:
        """Commit a snapshot when all servers have written it; what went wrong, which the log says, too."""
        step, config, cuts = order.step, self.part.config, self.part.kept
        problem: Exception | None = None
        try:
            records = self._servers.everywhere(lambda server: self._record(server, order))
            tensors = {
                name: TensorEntry.joined([(records[server], key) for server, key in pieces])
                for name, pieces in config.tensors
            }
            applied = {str(worker): list(push) for worker, push in order.applied.items()}
            with self._committing:
                if not self.now(lambda core: core.schedule.may_commit(order.history)):
                    raise RolledBack("the servers have gone on from another step since")
                cuts.commit(Manifest(step, records, tensors, {"applied": applied, "model": config.name}))
            _log.info("model %s: a cut of step %d is in %s", config.name, step, cuts.root)
        except Exception as error:  # noqa: BLE001  training goes on without it, unless it is needed
            _log.warning("model %s: there is no cut of step %d: %s", config.name, step, error)
            problem = error
        self.now(lambda core: core.schedule.finished(step, order.history, time.monotonic(), problem is None))
        if problem is None:
            self._prune()
        return problem

    def _record(self, server: int, order: WriteSnapshot) -> ShardRecord:
        fields = {"step": order.step, "now": False}
        if order.is_copied and server not in self.part.config.participants:  # it hears of no update
            self._call(server, protocol.CUT, {**fields, "now": True}, LONG)
        return ShardRecord.from_dict(self._call(server, protocol.CUT, fields, LONG)["record"])

    def _restore(self) -> Restored | None:
        cuts = self.part.cuts
        if cuts is None or cuts.latest() is None:
            return None
        reached = 0

        def restore(cut: Cut) -> None:
            nonlocal reached
            step = cut.manifest.step
            problems: list[KeepError] = []  # all servers are to try before one is looked at

            def on(server: int) -> int:
                fields = {"step": step, "record": cut.manifest.record(shard_name(server)).to_dict()}
                try:
                    return int(self._call(server, protocol.RESTORE, fields, protocol.CALL_SECONDS)["reached"])
                except KeepError as error:
                    problems.append(KeepError(first_line(error)))
                    return 0

            reached = max(reached, *self._servers.everywhere(on))
            for problem in problems:
                raise problem

        cut = cuts.newest_readable(restore)
        if cut is None:
            return None
        cuts.rewind(cut.manifest.step)
        applied = {int(worker): tuple(push) for worker, push in cut.manifest.meta["applied"].items()}
        return Restored(cut.manifest.step, applied, reached)

    def _remove(self, first: int) -> None:
        cuts = self.part.cuts
        if cuts is not None:
            later = [step for step in cuts.steps() if step >= first]
            for step in later:
                cuts.remove(step)
            self._forget_elsewhere(later)

    def _prune(self) -> None:
        try:
            self._forget_elsewhere(self.part.kept.prune(KEPT_CUTS))
        except StratagemError as error:
            _log.warning("model %s: old cuts could not be removed: %s", self.part.config.name, error)

    def _forget_elsewhere(self, steps: list[int]) -> None:
        """Remove snapshots from the other servers' disks, which may be their own."""
        for server in range(1, len(self.part.config.servers)):
            self._call(server, protocol.FORGET, {"steps": steps}, protocol.CALL_SECONDS)

    def close(self) -> None:
        """Decide nothing more, and end its threads."""
        self.now(ModelCore.stop)
        self._threads.shutdown(wait=False, cancel_futures=True)
