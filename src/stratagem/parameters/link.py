"""A worker's end: brings its model to the servers, pushes gradients, pulls parameters, and comes back after losses.

Every push has a number. It is sent again, under the same number, when a connection breaks, and the servers apply it
once; when the servers have gone back to an earlier step it is void, and the worker goes on from there.
"""

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn, TypeVar

import numpy as np

from stratagem.errors import DeadlineExceeded, RolledBack, StratagemError, TaskLost, TaskUnreachable
from stratagem.keep import ShardRecord
from stratagem.parameters import protocol
from stratagem.parameters.delivery import Delivery
from stratagem.parameters.machines import Push
from stratagem.parameters.planning import ModelPlan, Pieces
from stratagem.parameters.protocol import OK, ROLLED_BACK, STATE
from stratagem.parameters.store import Array
from stratagem.runtime.buffers import Buffers
from stratagem.runtime.server import Server
from stratagem.runtime.wire import SHARED_MEMORY, Fields, Peer, Response
from stratagem.runtime.wire.failures import first_line

_log = logging.getLogger("stratagem")
_LOG_EVERY = 5.0
_PAUSE = 0.05
_BUFFERS = 3
_LONG = 300.0
"""Seconds for a call that brings a whole model."""
_GONE = (RolledBack, TaskLost, TaskUnreachable, DeadlineExceeded)
VOID = "void"
"""A push that the servers went back behind."""
T = TypeVar("T")


@dataclass
class Outcome:
    """What came of a push.

    Attributes:
        kind: Applied, dropped, counted for an update to come, or void.
        step: The global step of the parameters that came back.
        leaves: The newest parameters of each server; none if the push was only counted.
        metrics: The means over all pushes of the update, if it was of several.
        staleness: How many updates came between the parameters that it was computed on and its own; `None` if it
            was not applied.
        update: The global step that the push made; that of the parameters if it made none.
    """

    kind: str
    step: int
    leaves: Pieces | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    staleness: int | None = None
    update: int = 0

    def __post_init__(self) -> None:
        self.update = self.update or self.step


class Link:
    """One worker's tie to the servers of one model.

    Args:
        server: This worker's own server, by which it is known and calls others.
        worker: Its number.
        is_chief: Whether it brings the initial values.
        plan: The model.
        initial: Gives the initial values for each server.

    Attributes:
        step: The newest global step that was heard of.
        dropped: How many pushes of this worker were dropped.
    """

    def __init__(
        self, server: Server, worker: int, is_chief: bool, plan: ModelPlan, initial: Callable[[], Pieces]
    ) -> None:
        self.step = 0
        self.dropped = 0
        self._server = server
        self._worker = worker
        self._is_chief = is_chief
        self._plan = plan
        self._initial = initial
        self._epoch = ""
        self._sequence = 0
        self._patience = plan.options.rejoin_timeout
        self._participants = frozenset(plan.configs[0].participants)
        count = len(plan.configs)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="stratagem-link") if count > 1 else None
        self._buffers = [
            [(Buffers(_BUFFERS), held.spec.shape, np.dtype(held.spec.dtype)) for held in config.leaves]
            for config in plan.configs
        ]
        self._pusher: ThreadPoolExecutor | None = None
        self._next_log = 0.0
        self._gathers = 0
        self._notes: Counter[str] = Counter()
        # Of one thread at a time: the user's, and the one that tells a restarted leader that this worker pauses.
        self._turn = threading.RLock()
        self._is_paused = False
        self._pulled_epoch = ""
        server.when_leader_restarts(self._tell_again)

    @property
    def name(self) -> str:
        """The model's name."""
        return self._plan.configs[0].name

    # Coming, and coming back.

    def connect(self, why: str = "") -> None:
        """Tell all servers of the model, and wait until it is open for training.

        Args:
            why: What makes a worker come again, for the log.

        Raises:
            TaskLost: A server is lost for good, or does not come back in time.
        """
        began = time.monotonic()
        if why:
            _log.warning("%s lost its servers and tries to come back: %s", self._server.task, why)
        while True:
            try:
                waiting = self._try_to_join()
            except _Unrecoverable as error:
                raise TaskLost(str(error)) from None
            except _GONE as error:
                waiting = first_line(error)
                if time.monotonic() - began > self._patience:
                    self._give_up(waiting, time.monotonic() - began)
            if waiting is None:
                if why:
                    _log.warning("%s is back, at step %d", self._server.task, self.step)
                return
            self._say_waiting(waiting, time.monotonic() - began)
            time.sleep(
                _PAUSE
            )  # a server that is coming up, or a chief on its way, has no event to wait for here

    def _give_up(self, problem: str, seconds: float) -> NoReturn:
        hint = ""
        if self._plan.options.snapshot_dir is None:
            hint = (
                ". There are no snapshots that they could come back from: give the strategy a snapshot_dir (stratagem run "
                "makes one by itself)"
            )
        raise TaskLost(
            f"the parameter servers could not be reached for {seconds:.0f} s (rejoin_timeout={self._patience:g}): {problem}. "
            f"Either they are not running, or the job is over and they have ended{hint}"
        )

    def _try_to_join(self) -> str | None:
        """What has to be waited for, or `None` when this worker has joined."""
        told = self._everywhere(self._found)
        starts = [answer["start"] for answer in told]
        fields = {
            "model": self.name,
            "worker": self._worker,
            "incarnation": self._server.incarnation,
            "chief": self._is_chief,
            "starts": starts,
            "had_values": bool(self._epoch) or any(answer["has_values"] for answer in told[1:]),
        }
        answer = self._call(0, protocol.JOIN, fields).fields
        match answer[STATE]:
            case protocol.OK:
                self._epoch, self.step = answer["epoch"], answer["step"]
                return None
            case protocol.WANTED:
                self._fill()
                self._call(0, protocol.OPEN, {"model": self.name, "starts": starts})
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

    def _found(self, server: int) -> Fields:
        config = self._plan.configs[server]
        answer = self._call(server, protocol.FOUND, {"config": config.to_fields()}).fields
        for missing in answer["missing"]:
            artifact = np.frombuffer(self._plan.programs[missing].artifact, np.uint8)
            self._call(server, protocol.PROGRAM, {"model": self.name}, [artifact], seconds=_LONG)
        return answer

    def _fill(self) -> None:
        values = self._initial()
        self._everywhere(
            lambda server: self._call(
                server, protocol.FILL, {"model": self.name}, values[server], seconds=_LONG
            )
        )

    # Training.

    def pull(self) -> Outcome:
        """The newest parameters of every server."""

        def act() -> Outcome:
            answers = self._everywhere(
                lambda server: self._call(
                    server, protocol.PULL, {"model": self.name, "epoch": self._epoch}, receives=True
                )
            )
            return self._outcome(answers)

        return self._persistent(act)

    def push(
        self,
        rows: int,
        gradients: Pieces,
        commons: Sequence[Array] = (),
        metrics: dict[str, float] | None = None,
        base: int | None = None,
    ) -> Outcome:
        """Push gradients, and come back with the newest parameters once they have been made use of.

        Args:
            rows: How many examples they are of; none: there are no gradients.
            gradients: For each server, those of its pieces.
            commons: What all gradients have in common.
            metrics: To be averaged over the pushes of one update.
            base: The step of the parameters that they were computed on.
        """
        return self._finish(self._delivery(rows, gradients, commons, metrics, base))

    def begin(
        self,
        rows: int,
        gradients: Pieces,
        commons: Sequence[Array] = (),
        metrics: dict[str, float] | None = None,
        base: int | None = None,
    ) -> Callable[[], Outcome]:
        """The same in two halves: send the gradients now; what comes back waits for it, and is what `push` returns.

        Nothing else may be asked of the servers in between.
        """
        if not self._is_near:
            # Answers that nobody receives would keep the servers from going on.
            if self._pusher is None:
                self._pusher = ThreadPoolExecutor(1, thread_name_prefix="stratagem-push")
            return self._pusher.submit(self.push, rows, gradients, commons, metrics, base).result
        delivery = self._delivery(rows, gradients, commons, metrics, base)
        if delivery is not None:
            try:
                for server in sorted(self._participants):
                    delivery.send(server)
            except _GONE:
                delivery.abandon()  # it is sent again, and the loss is seen to, when the answer is asked for
        return partial(self._finish, delivery)

    def _delivery(
        self,
        rows: int,
        gradients: Pieces,
        commons: Sequence[Array],
        metrics: dict[str, float] | None,
        base: int | None,
    ) -> Delivery | None:
        """A push that is still to be sent; `None` if it is void before it is."""
        with self._turn:
            self._is_paused = False
            if self._pulled_epoch != self._epoch:  # the servers have gone back since
                return None
            self._sequence += 1
            base = self.step if base is None else base
            push = Push(self._worker, self._server.incarnation, self._sequence, base, rows)
            told = gradients, commons, metrics or {}
            return Delivery(push, self.name, self._epoch, *told, self._ask, self._say_who)

    def _finish(self, delivery: Delivery | None) -> Outcome:
        """Wait until the servers have made use of a push, however often it has to be sent."""
        with self._turn:
            while delivery is not None:
                try:
                    answers = self._on_participants(delivery.answer)
                    kinds = {answer.fields["kind"] for answer in answers if answer is not None}
                    # Counted here, and applied by the time that another server was asked: all have it by now.
                    return self._outcome(answers) if len(kinds) == 1 else self.pull()
                except _GONE as error:
                    delivery = delivery.again()
                    self.connect(first_line(error))
                if self._epoch != delivery.epoch:
                    break
            return replace(self.pull(), kind=VOID)

    def _outcome(self, answers: Sequence[Response | None]) -> Outcome:
        first = answers[0]
        if first is None:
            raise RolledBack("server 0 said nothing, which has to do with everything")
        kind = first.fields.get("kind", "pulled")
        self._pulled_epoch = self._epoch
        self.step = first.fields["step"]
        if kind == "dropped":
            self.dropped += 1
            _log.info("%s: a push was dropped: %s", self._server.task, first.fields["why"])
        leaves = [answer.tensors if answer is not None else [] for answer in answers]
        return Outcome(
            kind,
            self.step,
            leaves if any(leaves) else None,
            first.fields.get("metrics", {}),
            first.fields.get("staleness"),
            first.fields.get("update", 0),
        )

    def free_memory(self, server: int) -> list[Array]:
        """Memory for what a server sends, which nobody uses any more."""
        return [buffers.take(shape, dtype) for buffers, shape, dtype in self._buffers[server]]

    def fetch(self) -> tuple[int, Pieces]:
        """All values of all servers at one step."""

        def act() -> tuple[int, Pieces]:
            with self._standing_still() as step:
                answers = self._everywhere(lambda server: self._read(server, step))
            found = {answers[server].fields["step"] for server in self._participants}
            if found != {step}:  # held for too long
                raise RolledBack(
                    f"values of steps {sorted(found)} came together, those of {step} were asked for"
                )
            return step, [answer.tensors for answer in answers]

        return self._persistent(act)

    def _read(self, server: int, step: int) -> Response:
        """All that a server holds; one without variables is at no step."""
        at = step if server in self._participants else 0
        told = {"model": self.name, "epoch": self._epoch, "step": at}
        return self._call(server, protocol.READ, told, seconds=_LONG)

    @contextmanager
    def _standing_still(self) -> Iterator[int]:
        """Keep the servers from making updates; the step at which they stand."""
        holder = {"model": self.name, "holder": f"{self._server.task} ({self._server.incarnation})"}
        step = self._call(0, protocol.HOLD, holder).fields["step"]
        try:
            yield step
        finally:
            self._call(0, protocol.RELEASE, holder)

    # Setting, and keeping.

    def assign(self, values: Sequence[Mapping[int, Array]], step: int | None = None) -> None:
        """Set values on the servers, on all of them between the same two updates.

        Args:
            values: For each server, the new ones of what it holds, by their places in `StoreConfig.held`.
            step: The global step from which training goes on with them: all that was pushed before is void, also
                of other workers, which go on from there too. `None`: it goes on as it is.
        """
        token = secrets.token_hex(8)
        servers = [server for server, held in enumerate(values) if held]

        def stage(server: int) -> None:
            told = {"model": self.name, "epoch": self._epoch, "token": token, "indices": list(values[server])}
            if server in servers:
                self._call(server, protocol.STAGE, told, list(values[server].values()), seconds=_LONG)

        def act() -> None:
            self._everywhere(stage)
            told = {"epoch": self._epoch, "token": token, "servers": servers, "step": step}
            answer = self._call(0, protocol.ASSIGN, {"model": self.name, **told}, seconds=_LONG).fields
            self._epoch, self.step = answer["epoch"], answer["step"]

        self._persistent(act)

    def keep(self, root: str, make: Callable[[int], bool]) -> tuple[int, bool]:
        """Have every server copy what it holds, at one step, and write the copies into a checkpoint.

        Args:
            root: The directory of all checkpoints.
            make: Called with the step; makes the directory of that checkpoint, or says that it is not wanted.

        Returns:
            The step, and whether the servers write: not if it is not wanted, or they cannot reach the directory.
        """

        def act() -> tuple[int, bool]:
            with self._standing_still() as step:
                if not make(step):
                    return step, False
                told = {"model": self.name, "epoch": self._epoch, "root": root, "step": step}
                answers = self._everywhere(
                    lambda server: self._call(server, protocol.KEEP, told, seconds=_LONG)
                )
            return step, all(answer.fields["is_reached"] for answer in answers)

        return self._persistent(act)

    def kept(self, root: str, step: int) -> list[ShardRecord]:
        """Wait until every server has written its shard of a checkpoint; to be called from any thread.

        Raises:
            KeepError: One could not.
            RemoteError: A server was lost meanwhile, or has gone back.
        """
        told = {"model": self.name, "root": root, "step": step}

        def ask(server: int) -> ShardRecord:
            while True:
                fields = self._call(server, protocol.KEPT, told).fields
                if fields[STATE] == OK:
                    return ShardRecord.from_dict(fields["record"])

        return [ask(server) for server in range(len(self._plan.configs))]

    def note(self, what: str, note: bytes) -> None:
        """Leave a note with server 0, for the other workers: the chief's part in what `noted` waits for."""
        told = {"model": self.name, "key": self._note_key(what)}
        self._persistent(lambda: self._call(0, protocol.NOTE, told, [np.frombuffer(note, np.uint8)]))

    def noted(self, what: str) -> bytes | None:
        """The chief's note; waits until there have been as many of that kind as this worker has asked for.

        Returns:
            The note; `None` for a worker that was started, perhaps again, while others train: they are past it.
        """
        told = {"model": self.name, "key": self._note_key(what)}

        def act() -> bytes | None:
            began = time.monotonic()
            while True:
                answer = self._call(0, protocol.NOTED, told)
                if answer.fields[STATE] == OK:
                    return answer.tensors[0].tobytes()
                if not self.has_pushed and answer.fields["step"] > 0:
                    return None
                self._say_waiting(f"for the chief to have {what}", time.monotonic() - began)

        return self._persistent(act)

    def _note_key(self, what: str) -> str:
        self._notes[what] += 1
        return f"{what} {self._notes[what]}"

    @property
    def has_pushed(self) -> bool:
        """Whether this worker has pushed anything so far."""
        return self._sequence > 0

    # With the other workers.

    def pause(self) -> None:
        """Tell the servers that this worker's data have ended for now."""
        with self._turn:
            self._is_paused = True
            self._persistent(
                lambda: self._call(0, protocol.PAUSE, {"model": self.name, "worker": self._worker})
            )

    def _tell_again(self) -> None:
        """A leader that was started again does not know that this worker pauses, and would wait for it."""
        try:
            with self._turn:
                if self._is_paused:
                    self.connect("server 0 was started again")
                    self.pause()
        except (StratagemError, SystemExit) as error:
            _log.info("%s could not tell that it pauses: %s", self._server.task, error)

    def gather(self, what: str, array: Array) -> list[Array]:
        """The arrays of all workers, in their order; every worker has to come to this."""
        self._gathers += 1
        key = f"{self._server.incarnation} {self._gathers}"

        def act() -> list[Array]:
            fields = {"model": self.name, "worker": self._worker, "what": what, "key": key}
            began = time.monotonic()
            while True:
                answer = self._call(0, protocol.GATHER, fields, [array])
                if answer.fields[STATE] == OK:
                    return answer.tensors
                waiting = ", ".join(answer.fields["waiting"])
                self._say_waiting(f"for {waiting} to come to {what}", time.monotonic() - began)

        return self._persistent(act)

    def check_same(self, number: int, digest: bytes) -> None:
        """Raise unless this worker's data begin as the others' do."""
        fields = {"model": self.name, "worker": self._worker, "number": number, "digest": digest}
        self._persistent(lambda: self._call(0, protocol.SAME, fields))

    # Calls.

    def peer(self, server: int) -> Peer:
        """A server, to be called."""
        return self._server.peers[self._plan.options.servers[server]]

    @property
    def _is_near(self) -> bool:
        """Whether all servers that take part are on this host."""
        return all(self.peer(server).transport == SHARED_MEMORY for server in self._participants)

    def _call(
        self,
        server: int,
        call: str,
        fields: Fields,
        tensors: Sequence[Any] = (),
        *,
        receives: bool = False,
        seconds: float = protocol.CALL_SECONDS,
    ) -> Response:
        """Call a server; if it sends parameters, see `_Asked`."""
        answer = _Asked(self, server, call, fields, tensors, receives, seconds).answer()
        if answer.fields.get(STATE) == ROLLED_BACK:
            raise RolledBack(str(answer.fields["why"]))
        return answer

    def _ask(self, server: int, call: str, fields: Fields, tensors: Sequence[Any]) -> "_Asked":
        return _Asked(self, server, call, fields, tensors, True, protocol.CALL_SECONDS)

    def _persistent(self, act: Callable[[], T]) -> T:
        """Do something, again after every loss of the servers."""
        with self._turn:
            while True:
                try:
                    return act()
                except _GONE as error:
                    self.connect(first_line(error))

    def _everywhere(self, act: Callable[[int], T]) -> list[T]:
        if self._threads is None:
            return [act(0)]
        others = [self._threads.submit(act, server) for server in range(1, len(self._plan.configs))]
        first: T | Exception
        try:
            first = act(0)
        except Exception as error:  # noqa: BLE001  raised below, when no thread uses the arrays any more
            first = error
        results = [first, *(_result(other) for other in others)]
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    def _on_participants(self, act: Callable[[int], Response]) -> list[Response | None]:
        """The same, for those servers only that have something to do with every push."""
        return self._everywhere(lambda server: act(server) if server in self._participants else None)

    def _say_who(self, waiting: list[str], seconds: float) -> None:
        self._say_waiting(f"for {', '.join(waiting) or 'the other servers'}", seconds)

    def _say_waiting(self, what: str, seconds: float) -> None:
        now = time.monotonic()
        if seconds >= _LOG_EVERY and now >= self._next_log:
            self._next_log = now + _LOG_EVERY
            _log.warning("%s waits %s (%.0f s so far)", self._server.task, what, seconds)

    def close(self) -> None:
        """End its threads."""
        for threads in (self._threads, self._pusher):
            if threads is not None:
                threads.shutdown(wait=False, cancel_futures=True)


class _Asked:
    """A server of a link that was asked something.

    Parameters that it sends stay in shared memory, or come into memory that is free.
    """

    def __init__(
        self,
        link: Link,
        server: int,
        call: str,
        fields: Fields,
        tensors: Sequence[Any],
        receives: bool,
        seconds: float,
    ) -> None:
        self._link = link
        self._server = server
        self._receives = receives
        self._seconds = seconds
        self._peer = link.peer(server)
        self._under_way = self._peer.begin(call, fields, tensors, timeout=seconds, wait=False)

    def answer(self) -> Response:
        """What it says."""
        lends = self._receives and self._peer.transport == SHARED_MEMORY
        into = self._link.free_memory(self._server) if self._receives and not lends else None
        return self._under_way.answer(timeout=self._seconds, into=into, lend=lends)

    def abandon(self) -> None:
        """Do without its answer."""
        self._under_way.abandon()


class _Unrecoverable(Exception):
    """Values are gone for good."""


def _result(future: Any) -> Any:
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001  handed on as a value, raised by who collects them
        return error
