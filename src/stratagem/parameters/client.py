"""A worker's client of the parameter servers: it joins them, comes back after losses, and reads, sets and keeps values.

Whatever a worker asks of the servers is asked again, after joining again, when a connection breaks or servers are lost.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn, TypeVar

import numpy as np

from stratagem import environment
from stratagem.errors import DeadlineExceeded, RolledBack, TaskLost, TaskReplaced, TaskUnreachable
from stratagem.keep import ShardRecord
from stratagem.parameters import protocol
from stratagem.parameters.model_core import Joining
from stratagem.parameters.planning import ModelPlan, Pieces
from stratagem.parameters.protocol import OK, STATE, StoreConfig
from stratagem.runtime.fan_out import fan_out
from stratagem.runtime.host_memory import Buffers
from stratagem.runtime.server import Server
from stratagem.runtime.wire import SHARED_MEMORY, Fields, Peer, Response
from stratagem.runtime.wire.arrays import Array
from stratagem.runtime.wire.error_translation import first_line
from stratagem.runtime.wire.peer import PendingCall
from stratagem.runtime.wire.waiting import Deadline, WaitingLog
from stratagem.tables.table_files import NO_ROWS, NewRows

_log = logging.getLogger("stratagem")
_PAUSE = 0.05
_BUFFERS = 3
LONG = 300.0
"""Seconds for a call that carries a whole model."""
LOSSES = (RolledBack, TaskLost, TaskUnreachable, DeadlineExceeded)
"""Errors after which a worker joins again."""
T = TypeVar("T")


class FreeMemory:
    """A worker's own memory for the parameters of one server."""

    def __init__(self, config: StoreConfig) -> None:
        self._buffers = [
            (Buffers(_BUFFERS), leaf.spec.shape, np.dtype(leaf.spec.dtype)) for leaf in config.leaves
        ]

    def take(self) -> list[Array]:
        """Return memory for all parameters of the server that nobody uses any more."""
        return [buffers.take(shape, dtype) for buffers, shape, dtype in self._buffers]


def receive(call: PendingCall, seconds: float, memory: FreeMemory | None = None, others: int = 0) -> Response:
    """Wait for a server's answer; parameters in it come to lie in `memory`, unless they can stay in shared memory.

    Raises:
        RolledBack: The servers have gone back to an earlier step, or are about to.
        TaskReplaced: A newer start of this worker has taken its place.
    """
    is_lent = memory is not None and call.transport == SHARED_MEMORY
    into = None if is_lent or memory is None else [*memory.take(), *[None] * others]
    answer = call.answer(timeout=seconds, into=into, lend=is_lent)
    match answer.fields.get(STATE):
        case protocol.ROLLED_BACK:
            raise RolledBack(str(answer.fields["why"]))
        case protocol.REPLACED:
            raise TaskReplaced(str(answer.fields["why"]))
    return answer


class ServerClient:
    """One worker's client of the servers of one model; `connect` comes before anything else.

    Args:
        is_chief: Whether it brings the initial values.
        initial: Makes the initial values for each server.
    """

    def __init__(
        self, server: Server, worker: int, is_chief: bool, plan: ModelPlan, initial: Callable[[], Pieces]
    ) -> None:
        self.server = server
        self.worker = worker
        self.step = 0  # the newest global step that this worker knows of
        self.epoch = ""  # the stretch of history that the servers are in, as far as this worker knows
        self.patience = plan.options.rejoin_timeout  # seconds for which a lost task may come back
        # How many updates, of all workers, were lost with servers while this one trained.
        self.lost_updates = 0
        self.servers = range(len(plan.configs))
        self._is_chief = is_chief
        self._plan = plan
        self._initial = initial
        self._model = plan.configs[0].name
        self._participants = plan.configs[0].participants
        # Held by the caller: the user's thread, or the one that tells a restarted leader of a pause.
        self._turn = threading.RLock()
        # Its threads start when there is something to do for them.
        self._threads = ThreadPoolExecutor(len(self.servers), thread_name_prefix="stratagem-client")
        self._pools = [self._threads]
        self._waiting_log = WaitingLog()
        self._has_joined = False
        # Every push asks for them.
        self._peer: Callable[[int], Peer] = cache(lambda number: server.peers[plan.options.servers[number]])

    # Joining, and joining again.

    def connect(self, why: BaseException | str = "") -> None:
        """Describe the model to all servers, and wait until it is open for training.

        Args:
            why: Why a worker joins again, for the log. It is no loss if the servers are at another step: the chief
                may have restored a checkpoint.

        Raises:
            TaskLost: A server is lost for good, or does not come back in time.
        """
        deadline = Deadline(self.patience)
        is_lost, is_logged = bool(why) and not isinstance(why, RolledBack), False
        while True:
            if is_lost and not is_logged:
                is_logged = True
                reason = why if isinstance(why, str) else first_line(why)
                _log.warning("%s lost its servers and tries to come back: %s", self.server.task, reason)
            try:
                waiting = self._try_to_join()
            except _Unrecoverable as error:
                raise TaskLost(str(error)) from None
            except LOSSES as error:
                waiting = first_line(error)
                if not deadline.left():
                    self._give_up(waiting, deadline.elapsed())
            if waiting is None:
                if why:
                    level = logging.WARNING if is_lost else logging.INFO
                    _log.log(level, "%s is back, at step %d", self.server.task, self.step)
                return
            is_lost = bool(why)
            self.log_waiting(f"for its servers: {waiting}", deadline.elapsed())
            # A server that is coming up, or a chief on its way, has no event to wait for here.
            time.sleep(_PAUSE)

    def _give_up(self, problem: str, seconds: float) -> NoReturn:
        hint = ""
        if self._plan.options.snapshot_dir is None:
            hint = (
                ". There are no snapshots that they could come back from: give the strategy a snapshot_dir "
                "(stratagem run makes one by itself)"
            )
        raise TaskLost(
            f"the parameter servers could not be reached for {seconds:.0f} s (rejoin_timeout={self.patience:g}): "
            f"{problem.rstrip('.?')}. Either they are not running, or the job is over and they have ended{hint}"
        )

    def _try_to_join(self) -> str | None:
        """Return why this worker has to wait, as a whole sentence; `None` when it has joined."""
        servers = self.everywhere(self._describe_model)
        if waiting := next(filter(None, (each["waiting"] for each in servers)), None):
            return str(waiting)
        starts = [each["start"] for each in servers]
        had_values = bool(self.epoch) or any(each["has_values"] for each in servers[1:])
        incarnation = self.server.incarnation
        joining = Joining(self.worker, incarnation, self._is_chief, starts, had_values, self.epoch, self.step)
        answer = self.call(0, protocol.JOIN, {"joining": list(joining)}).fields
        match answer[STATE]:
            case protocol.OK:
                self.epoch, self.step = answer["epoch"], answer["step"]
                if self.step and not self._has_joined:
                    self._log_joined_late()
                self._has_joined = True
                if "reached" in answer:
                    lost = answer["reached"] - answer["snapshot"]
                    self.lost_updates += lost
                    _log.warning(
                        "%s: %d update(s) are lost with a server: all have gone back from step %d to the snapshot of "
                        "step %d",
                        *(self.server.task, lost, answer["reached"], answer["snapshot"]),
                    )
                return None
            case protocol.WANTED:
                self._has_joined = True
                values = self._initial()
                self.everywhere(
                    lambda server: self.call(server, protocol.FILL, {}, values[server], seconds=LONG)
                )
                self.call(0, protocol.OPEN, {"starts": starts})
                return self._try_to_join()
            case protocol.WAIT:
                return str(answer["why"])
            case protocol.OVER:
                _log.warning("there is nothing left to do here: %s", answer["why"])
                raise SystemExit(0)
            case protocol.LOST:
                raise _Unrecoverable(str(answer["why"]))
            case _:
                raise RolledBack(str(answer.get("why", answer)))

    def _describe_model(self, server: int) -> Fields:
        """Describe a server's part of the model to it, and send it the programs that it lacks."""
        fields = {"config": self._plan.configs[server].to_fields(), "chief": self._is_chief}
        answer = self.call(server, protocol.MODEL, fields).fields
        for missing in answer["missing"]:
            artifact = np.frombuffer(self._plan.programs[missing].artifact, np.uint8)
            self.call(server, protocol.PROGRAM, {}, [artifact], seconds=LONG)
        return answer

    def _log_joined_late(self) -> None:
        """Log that the model was trained before this worker came: for a chief, perhaps by an earlier job."""
        task, peers = self.server.task, self.server.peers
        if environment.generation() > 0:
            _log.warning("%s was started again, and takes part from step %d on", task, self.step)
        elif self._is_chief:
            where = ", ".join(f"{task} at {peers.address(task)}" for task in self._plan.options.servers)
            _log.warning(
                "%s finds %s trained to step %d already (%s), and goes on from there. That is right for a chief that was "
                "started again. If this is a new job, its servers are those of an earlier one, or went on from the "
                "snapshot_dir of one: end them, or give another snapshot_dir, and start again to train from the beginning",
                *(task, self._model, self.step, where),
            )

    def retry(self, attempt: Callable[[], T]) -> T:
        """Attempt something; after every loss of the servers, join again and attempt it once more."""
        with self._turn:
            while True:
                try:
                    return attempt()
                except LOSSES as error:
                    self.connect(error)

    # Calls.

    def call(
        self,
        server: int,
        call: str,
        fields: Fields,
        tensors: Sequence[Any] = (),
        seconds: float = protocol.CALL_SECONDS,
        memory: FreeMemory | None = None,
    ) -> Response:
        """Call a server about the model and wait for its answer; fails at once if the server is not there."""
        fields = {"model": self._model, "epoch": self.epoch, **fields}
        under_way = self._peer(server).begin(call, fields, tensors, timeout=seconds, wait=False)
        return receive(under_way, seconds, memory)

    def everywhere(self, act: Callable[[int], T]) -> list[T]:
        """Do something for every server at once."""
        return fan_out(act, self.servers, self._threads.submit)

    def ask(self, call: str, fields: Fields, tensors: Sequence[Any] = ()) -> Response:
        """Call server 0; after every loss of the servers, join again and call once more."""
        return self.retry(lambda: self.call(0, call, fields, tensors))

    def log_waiting(self, what: str, seconds: float) -> None:
        """Log what this worker waits for (`for …`), if it has for long, and not too often."""
        if self._waiting_log.is_due(seconds):
            _log.warning("%s waits %s (%.0f s so far)", self.server.task, what, seconds)

    # Rows of tables.

    def pull_rows(self, wanted: Pieces, trains: bool = False) -> Pieces:
        """Pull rows of tables from every server: the ids wanted of it, for each stack. `trains`: gradients will follow."""
        fields = {"reader": self.worker if trains else None}

        def from_server(server: int) -> list[Array]:
            return self.call(server, protocol.ROWS, fields, wanted[server]).tensors

        return self.retry(lambda: self.everywhere(from_server))

    def table_page(self, server: int, stack: int, start: int, size: int) -> Response:
        """Read some rows of a stack of tables, and where to go on."""
        fields = {"stack": stack, "start": start, "size": size}
        return self.retry(lambda: self.call(server, protocol.TABLE, fields))

    # All values: reading, setting, keeping.

    def fetch(self) -> tuple[int, Pieces]:
        """Read all values of all servers at one step, and return it first."""

        def read(server: int, step: int) -> Response:
            # A server without variables is at no step.
            at_least = step if server in self._participants else 0
            fields = {"than": -1, "at_least": at_least, "everything": True}
            return self.call(server, protocol.PULL, fields, seconds=LONG)

        def attempt() -> tuple[int, Pieces]:
            with self._updates_held() as step:
                answers = self.everywhere(lambda server: read(server, step))
            steps = {answers[server].fields["step"] for server in self._participants}
            if steps != {step}:  # held for too long
                raise RolledBack(
                    f"values of steps {sorted(steps)} came together, those of {step} were asked for"
                )
            return step, [answer.tensors for answer in answers]

        return self.retry(attempt)

    @contextmanager
    def _updates_held(self) -> Iterator[int]:
        """Keep the servers from making updates; yields the step that they are at."""
        holder = {"holder": f"{self.server.task} ({self.server.incarnation})"}
        step = self.call(0, protocol.HOLD, holder).fields["step"]
        try:
            yield step
        finally:
            self.call(0, protocol.RELEASE, holder)

    def assign(
        self,
        values: Sequence[Mapping[int, Array]],
        step: int | None = None,
        rows: NewRows = NO_ROWS,
    ) -> None:
        """Set values on the servers, on all of them between the same two updates.

        Args:
            values: For each server, new values of its arrays, by their places in `StoreConfig.arrays`.
            step: The global step from which training goes on with them: all that was pushed before is void, also
                of other workers, which go on from there too. `None`: it goes on as it is.
            rows: New rows of tables: the servers read files by themselves.
        """
        token = secrets.token_hex(8)
        servers = [server for server, new in enumerate(values) if new or rows]
        of_rows, shared = rows.to_fields()

        def stage(server: int) -> None:
            fields = {"token": token, "indices": list(values[server]), "rows": of_rows}
            self.call(server, protocol.STAGE, fields, [*values[server].values(), *shared], seconds=LONG)

        def attempt() -> None:
            fan_out(stage, servers, self._threads.submit)
            fields = {"token": token, "servers": servers, "step": step}
            answer = self.call(0, protocol.ASSIGN, fields, seconds=LONG).fields
            self.epoch, self.step = answer["epoch"], answer["step"]

        self.retry(attempt)

    def keep(self, root: str, make: Callable[[int], bool]) -> tuple[int, bool]:
        """Have every server copy what it holds, at one step, and write the copies into a checkpoint.

        Args:
            root: The directory of all checkpoints.
            make: Called with the step; makes the directory of that checkpoint, or returns False if it is not wanted.

        Returns:
            The step, and whether the servers write: not if it is not wanted, or they cannot reach the directory.
        """

        def attempt() -> tuple[int, bool]:
            with self._updates_held() as step:
                if not make(step):
                    return step, False
                fields = {"root": root, "step": step}
                answers = self.everywhere(
                    lambda server: self.call(server, protocol.KEEP, fields, seconds=LONG)
                )
            return step, all(answer.fields["is_reached"] for answer in answers)

        return self.retry(attempt)

    def shard_records(self, root: str, step: int) -> list[ShardRecord]:
        """Wait until every server has written its shard of a checkpoint; may be called from any thread.

        Raises:
            KeepError: A server could not write.
            RemoteError: A server was lost meanwhile, or has gone back.
        """

        def record_of(server: int) -> ShardRecord:
            while True:
                fields = self.call(server, protocol.RECORD, {"root": root, "step": step}).fields
                if fields[STATE] == OK:
                    return ShardRecord.from_dict(fields["record"])

        return [record_of(server) for server in self.servers]

    def close(self) -> None:
        """End its threads."""
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)


class _Unrecoverable(Exception):
    """Values are gone for good."""
