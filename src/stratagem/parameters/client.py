"""A worker's client of the parameter servers: joins them, comes back after losses, pushes, pulls, sets and keeps values.

Every push has a number. It is sent again, under the same number, when a connection breaks, and the servers apply it
once; when the servers have gone back to an earlier step it is void, and the worker goes on from there.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any, NoReturn, TypeVar

import numpy as np

from stratagem import environment
from stratagem.errors import DeadlineExceeded, RolledBack, StratagemError, TaskLost, TaskUnreachable
from stratagem.keep import ShardRecord
from stratagem.parameters import protocol
from stratagem.parameters.model_core import Joining
from stratagem.parameters.planning import ModelPlan, Pieces
from stratagem.parameters.protocol import OK, STATE
from stratagem.parameters.push import VOID, Contribution, FreeMemory, Outcome, PushUnderWay, receive
from stratagem.parameters.rules import COUNTED, DROPPED, Push
from stratagem.runtime.fan_out import fan_out
from stratagem.runtime.server import Server
from stratagem.runtime.wire import SHARED_MEMORY, Fields, Peer, Response
from stratagem.runtime.wire.arrays import Array
from stratagem.runtime.wire.error_translation import first_line
from stratagem.runtime.wire.waiting import Deadline, WaitingLog
from stratagem.tables.table_files import NO_ROWS, NewRows

_log = logging.getLogger("stratagem")
_PAUSE = 0.05
LONG = 300.0
"""Seconds for a call that carries a whole model."""
_GONE = (RolledBack, TaskLost, TaskUnreachable, DeadlineExceeded)
"""Errors after which a worker joins again."""
T = TypeVar("T")


class ServerClient:
    """One worker's client of the servers of one model; `connect` comes before anything else.

    Args:
        server: This worker's own server, by which it is known and calls others.
        worker: Its number.
        is_chief: Whether it brings the initial values.
        plan: The model.
        initial: Makes the initial values for each server.

    Attributes:
        server: See above.
        worker: See above.
        step: The newest global step that this worker has heard of.
        epoch: The stretch of history that the servers are in, as far as this worker has heard.
        patience: Seconds for which a lost task may come back.
        dropped: How many pushes of this worker were dropped.
        lost_updates: How many updates, of all workers, were lost with servers while this one trained.
        servers: The numbers of the servers.
    """

    def __init__(
        self, server: Server, worker: int, is_chief: bool, plan: ModelPlan, initial: Callable[[], Pieces]
    ) -> None:
        self.server = server
        self.worker = worker
        self.step = 0
        self.epoch = ""
        self.patience = plan.options.rejoin_timeout
        self.dropped = 0
        self.lost_updates = 0
        self._is_chief = is_chief
        self._plan = plan
        self._initial = initial
        self._model = plan.configs[0].name
        self.servers = range(len(plan.configs))
        self._participants = plan.configs[0].participants
        self._memory = [FreeMemory(config) for config in plan.configs]
        # Held by whoever calls: the user's thread, or the one that tells a restarted leader of a pause.
        self._turn = threading.RLock()
        # They start their threads when there is something to do for them.
        self._threads = ThreadPoolExecutor(len(self.servers), thread_name_prefix="stratagem-client")
        self._pusher = ThreadPoolExecutor(1, thread_name_prefix="stratagem-push")
        self._waiting_log = WaitingLog()
        self._has_joined = False
        self._is_paused = False
        self._sequence = 0
        self._pulled_epoch = ""
        # Every push asks for them.
        self._peer: Callable[[int], Peer] = cache(lambda number: server.peers[plan.options.servers[number]])
        server.when_leader_restarts(self._pause_again)

    @property
    def has_pushed(self) -> bool:
        """Whether this worker has pushed anything so far."""
        return self._sequence > 0

    # Joining, and joining again.

    def connect(self, why: BaseException | str = "") -> None:
        """Tell all servers of the model, and wait until it is open for training.

        Args:
            why: Why a worker joins again, for the log. That the servers are at another step is no loss: the chief
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
            except _GONE as error:
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
        """Why this worker has to wait, as a whole sentence; `None` when it has joined."""
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
                    lost = answer["reached"] - answer["cut"]
                    self.lost_updates += lost
                    _log.warning(
                        "%s: %d update(s) are lost with a server: all have gone back from step %d to the snapshot of "
                        "step %d",
                        *(self.server.task, lost, answer["reached"], answer["cut"]),
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
        """Tell a server what it holds of the model, and send it the programs that it lacks."""
        fields = {"config": self._plan.configs[server].to_fields(), "chief": self._is_chief}
        answer = self.call(server, protocol.FOUND, fields).fields
        for missing in answer["missing"]:
            artifact = np.frombuffer(self._plan.programs[missing].artifact, np.uint8)
            self.call(server, protocol.PROGRAM, {}, [artifact], seconds=LONG)
        return answer

    def _log_joined_late(self) -> None:
        """Say that the model has been trained before this worker came: to a chief it may be that of an earlier job."""
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
        """Do something; after every loss of the servers, join again and do it once more."""
        with self._turn:
            while True:
                try:
                    return attempt()
                except _GONE as error:
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
        """Call a server about the model and wait for its answer; fails at once if the server is not there.

        Args:
            server: Its number.
            call: The call's name.
            fields: Plain values to send, beside the model's name and the epoch.
            tensors: Arrays to send.
            seconds: How long to wait for the answer.
            memory: For the parameters in the answer, if there are any.
        """
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

    # Training.

    def pull(self) -> Outcome:
        """The newest parameters of every server."""
        return self.retry(lambda: self._outcome(self.servers, self.everywhere(self._pull_from)))

    def pull_newer(self, than: int) -> Outcome | None:
        """The newest parameters of every server, unless they are those of a step."""

        def attempt() -> Outcome | None:
            first = self._pull_from(0, than)
            if first.fields["step"] <= than and self._pulled_epoch == self.epoch:
                return None
            if not first.tensors:
                return self.pull()
            answers = self.everywhere(lambda server: self._pull_from(server) if server else first)
            return self._outcome(self.servers, answers)

        return self.retry(attempt)

    def _pull_from(self, server: int, than: int = -1) -> Response:
        fields = {"than": than, "at_least": 0, "everything": False}
        return self.call(server, protocol.PULL, fields, memory=self._memory[server])

    def push(self, contribution: Contribution, push: PushUnderWay | None = None) -> Outcome:
        """Push gradients, however often it takes, and return the newest parameters once the servers have used them.

        Args:
            contribution: The gradients.
            push: The same, if `begin` has sent it.
        """
        with self._turn:
            push = push or self._new_push(contribution)
            while push is not None:
                try:
                    if len(self._participants) == 1:
                        answers = [push.exchange(0)]
                    else:
                        answers = fan_out(push.exchange, self._participants, self._threads.submit)
                except _GONE as error:
                    push.abandon()
                    self.connect(error)
                    if push.epoch != self.epoch:
                        break
                else:
                    # Counted here, and applied by the time that another server was asked: all have it by now.
                    if len({answer.fields["kind"] for answer in answers}) > 1:
                        return self.pull()
                    return self._outcome(self._participants, answers)
            return replace(self.pull(), kind=VOID)

    def begin(self, contribution: Contribution) -> Callable[[], Outcome]:
        """Send the gradients now; what this returns waits for the outcome, as `push` does.

        Nothing else may be asked of the servers in between.
        """
        if any(self._peer(server).transport != SHARED_MEMORY for server in self._participants):
            # Over a network, answers that nobody receives would keep the servers from going on.
            return self._pusher.submit(self.push, contribution).result
        with self._turn:
            push = self._new_push(contribution)
        if push is not None:
            try:
                for server in self._participants:
                    push.send(server)
            except _GONE:
                push.abandon()  # it is sent again, and the worker joins again, when the outcome is asked for
        return partial(self.push, contribution, push)

    def _new_push(self, contribution: Contribution) -> PushUnderWay | None:
        """A push that is still to be sent; `None` if it is void before it is."""
        self._is_paused = False
        if self._pulled_epoch != self.epoch:  # the servers have gone back since
            return None
        self._sequence += 1
        base = self.step if contribution.base is None else contribution.base
        push = Push(self.worker, self.server.incarnation, self._sequence, base, contribution.rows)
        fields = {"model": self._model, "epoch": self.epoch, "push": list(push)}
        return PushUnderWay(fields, contribution, self._peer, self._memory, self.log_waiting)

    def _outcome(self, servers: Sequence[int], answers: Sequence[Response]) -> Outcome:
        """What servers say, of which number 0 is the first."""
        fields = answers[0].fields
        kind = fields.get("kind", "pulled")
        self._pulled_epoch = self.epoch
        self.step = fields["step"]
        if kind == DROPPED:
            self.dropped += 1
            _log.info("%s: a push was dropped: %s", self.server.task, fields["why"])
        leaves: Pieces = [[] for _ in self.servers]
        rows: Pieces = [[] for _ in self.servers]
        for server, answer in zip(servers, answers, strict=True):
            count = len(self._plan.configs[server].leaves)
            leaves[server], rows[server] = answer.tensors[:count], answer.tensors[count:]
        return Outcome(
            kind,
            self.step,
            None if kind == COUNTED else leaves,
            fields.get("metrics", {}),
            fields.get("staleness"),
            fields.get("update", 0),
            rows if all(rows) else None,
        )

    def pull_rows(self, wanted: Pieces, trains: bool = False) -> Pieces:
        """Rows of tables from every server.

        Args:
            wanted: For each server, for each stack of tables the ids.
            trains: Whether this worker is going to send gradients of them.
        """
        fields = {"reader": self.worker if trains else None}

        def from_server(server: int) -> list[Array]:
            return self.call(server, protocol.ROWS, fields, wanted[server]).tensors

        return self.retry(lambda: self.everywhere(from_server))

    def table_page(self, server: int, stack: int, start: int, size: int) -> Response:
        """Some rows of a stack of tables, and where to go on."""
        fields = {"stack": stack, "start": start, "size": size}
        return self.retry(lambda: self.call(server, protocol.TABLE, fields))

    def pause(self) -> None:
        """Tell the servers that this worker's data have ended for now."""
        with self._turn:
            self._is_paused = True
            self.ask(protocol.PAUSE, {"worker": self.worker})

    def _pause_again(self) -> None:
        """Tell a leader that was started again, which would wait for this worker, that it pauses."""
        try:
            with self._turn:
                if self._is_paused:
                    self.connect("server 0 was started again")
                    self.pause()
        except (StratagemError, SystemExit) as error:
            _log.info("%s could not tell that it pauses: %s", self.server.task, error)

    # All values: reading, setting, keeping.

    def fetch(self) -> tuple[int, Pieces]:
        """All values of all servers at one step."""

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
            values: For each server, the new ones of what it holds, by their places in `StoreConfig.held`.
            step: The global step from which training goes on with them: all that was pushed before is void, also
                of other workers, which go on from there too. `None`: it goes on as it is.
            rows: What is new of the rows of tables: the servers read files by themselves.
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
            make: Called with the step; makes the directory of that checkpoint, or says that it is not wanted.

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

    def kept(self, root: str, step: int) -> list[ShardRecord]:
        """Wait until every server has written its shard of a checkpoint; may be called from any thread.

        Raises:
            KeepError: A server could not write.
            RemoteError: A server was lost meanwhile, or has gone back.
        """

        def record_of(server: int) -> ShardRecord:
            while True:
                fields = self.call(server, protocol.KEPT, {"root": root, "step": step}).fields
                if fields[STATE] == OK:
                    return ShardRecord.from_dict(fields["record"])

        return [record_of(server) for server in self.servers]

    def close(self) -> None:
        """End its threads."""
        for threads in (self._threads, self._pusher):
            threads.shutdown(wait=False, cancel_futures=True)


class _Unrecoverable(Exception):
    """Values are gone for good."""
