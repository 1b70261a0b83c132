"""A worker's training with the parameter servers: it pushes gradients, and new parameters come back.

Every push has a number. It is sent again, under the same number, when a connection breaks, and the servers apply it
once; when the servers have gone back to an earlier step it is void, and the worker goes on from there.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from stratagem.errors import RolledBack, StratagemError
from stratagem.parameters import protocol
from stratagem.parameters.client import LOSSES, FreeMemory, ServerClient, receive
from stratagem.parameters.planning import ModelPlan, Pieces
from stratagem.parameters.protocol import OK, PENDING, SEND, STATE, Reading
from stratagem.parameters.rules import COUNTED, DROPPED, Push
from stratagem.runtime.fan_out import fan_out
from stratagem.runtime.server import Server
from stratagem.runtime.wire import SHARED_MEMORY, Fields, Peer, Response
from stratagem.runtime.wire.arrays import Array
from stratagem.runtime.wire.error_translation import first_line
from stratagem.runtime.wire.peer import PendingCall

_log = logging.getLogger("stratagem")
VOID = "void"
"""The kind of a push that does not count, because the servers went back behind it."""


@dataclass(slots=True)
class Contribution:
    """A worker's contribution to an update."""

    rows: int  # the number of examples; with none there are no gradients
    gradients: Pieces  # for each server, those of its pieces
    commons: Sequence[Array] = ()  # the values that the gradients of all servers share
    # To be averaged over the pushes of one update.
    metrics: Mapping[str, Reading] = field(default_factory=dict)
    # The step of the parameters that the gradients were computed on; the newest known by default.
    base: int | None = None
    # For each server, ids and gradients of rows, for each stack of tables in turn.
    tables: Pieces | None = None
    # For each server, for each stack the ids of rows to be sent with the parameters.
    wanted: Pieces | None = None


@dataclass
class Outcome:
    """The outcome of a push."""

    kind: str  # applied, dropped, counted for an update to come, or void
    step: int  # the global step of the parameters that came back
    leaves: Pieces | None = None  # the newest parameters of each server; none if the push was only counted
    # The means over all pushes of the update, if it was of several.
    metrics: dict[str, Reading] = field(default_factory=dict)
    # How many updates came between the parameters that it was computed on and its own; `None` if it was not applied.
    staleness: int | None = None
    update: int = 0  # the global step that the push made; that of the parameters if it made none
    # The rows that were wanted, from each server for each stack of tables; `None` if they did not come.
    rows: Pieces | None = None

    def __post_init__(self) -> None:
        self.update = self.update or self.step


class PushUnderWay:
    """A push that is sent to every server that takes part in updates, under one number however often it is sent.

    Args:
        fields: What identifies it to every server: the model, the epoch, and the push itself.
        peer: Finds a server by its number.
        memory: For the parameters that each server sends.
        log_waiting: Called with whom server 0 waits for, and for how long.
    """

    def __init__(
        self,
        fields: Fields,
        contribution: Contribution,
        peer: Callable[[int], Peer],
        memory: Sequence[FreeMemory],
        log_waiting: Callable[[str, float], None],
    ) -> None:
        self.epoch: str = fields["epoch"]  # the stretch of the servers' history that it belongs to
        self._fields = fields
        self._contribution = contribution
        self._peer = peer
        self._memory = memory
        self._log_waiting = log_waiting
        self._calls: dict[int, PendingCall] = {}
        self._failure = ""
        self._began = time.monotonic()

    def send(self, server: int, again: bool = False) -> None:
        """Send a server its part, and leave its answer to `exchange`; if it is asked again it has the arrays already."""
        peer, ours = self._peer(server), self._contribution
        fields = {**self._fields, "again": again, "metrics": ours.metrics if server == 0 else {}}
        arrays = [*ours.gradients[server], *ours.commons] if ours.rows and not again else []
        if ours.tables is not None and ours.rows and not again:
            arrays += ours.tables[server]
            fields["tables"] = len(ours.tables[server])
        if ours.wanted is not None:
            arrays += ours.wanted[server]
            fields["wanted"] = len(ours.wanted[server])
        self._calls[server] = peer.begin(
            protocol.PUSH, fields, arrays, timeout=protocol.CALL_SECONDS, wait=False
        )

    def exchange(self, server: int) -> Response:
        """Wait until a server has used its part, which is sent now unless `send` was called before.

        Raises:
            RolledBack: The servers have gone back to an earlier step; or another server did not get its part, so that
                this one would wait in vain.
        """
        again = False
        try:
            while True:
                if server not in self._calls:
                    self.send(server, again)
                wanted = self._contribution.wanted
                others = 0 if wanted is None else len(wanted[server])
                answer = receive(self._calls.pop(server), protocol.CALL_SECONDS, self._memory[server], others)
                state = answer.fields[STATE]
                if state == OK:
                    return answer
                if self._failure:
                    raise RolledBack(f"another server did not get its part of a push: {self._failure}")
                if state == PENDING and server == 0:
                    tasks = ", ".join(answer.fields["waiting"]) or "the other servers"
                    self._log_waiting(f"for {tasks}", time.monotonic() - self._began)
                again = state != SEND
        except BaseException as error:
            self._failure = self._failure or first_line(error) or type(error).__name__
            raise

    def abandon(self) -> None:
        """Give up this attempt, so that the push can be sent once more."""
        for call in self._calls.values():
            call.abandon()
        self._calls.clear()
        self._failure = ""
        self._began = time.monotonic()


class TrainingClient(ServerClient):
    """A client that trains: it pushes gradients and pulls parameters."""

    def __init__(
        self, server: Server, worker: int, is_chief: bool, plan: ModelPlan, initial: Callable[[], Pieces]
    ) -> None:
        super().__init__(server, worker, is_chief, plan, initial)
        self.dropped = 0  # how many pushes of this worker were dropped
        self._memory = [FreeMemory(config) for config in plan.configs]
        self._pusher = ThreadPoolExecutor(1, thread_name_prefix="stratagem-push")
        self._is_paused = False
        self._sequence = 0
        self._pulled_epoch = ""
        self._pools.append(self._pusher)
        server.when_leader_restarts(self._pause_again)

    @property
    def has_pushed(self) -> bool:
        """True if this worker has pushed anything so far."""
        return self._sequence > 0

    def pull(self) -> Outcome:
        """Pull the newest parameters of every server."""
        return self.retry(lambda: self._outcome(self.servers, self.everywhere(self._pull_from)))

    def pull_newer(self, than: int) -> Outcome | None:
        """Pull the newest parameters of every server, unless they are those of this step."""

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
        """Push gradients, however often it takes; `begin` may have sent them. Return the newest parameters once they are used."""
        with self._turn:
            push = push or self._new_push(contribution)
            while push is not None:
                try:
                    if len(self._participants) == 1:
                        answers = [push.exchange(0)]
                    else:
                        answers = fan_out(push.exchange, self._participants, self._threads.submit)
                except LOSSES as error:
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
            except LOSSES:
                push.abandon()  # it is sent again, and the worker joins again, when the outcome is asked for
        return partial(self.push, contribution, push)

    def _new_push(self, contribution: Contribution) -> PushUnderWay | None:
        """Return a push that is still to be sent; `None` if it is void before it is."""
        self._is_paused = False
        if self._pulled_epoch != self.epoch:  # the servers have gone back since
            return None
        self._sequence += 1
        base = self.step if contribution.base is None else contribution.base
        push = Push(self.worker, self.server.incarnation, self._sequence, base, contribution.rows)
        fields = {"model": self._model, "epoch": self.epoch, "push": list(push)}
        return PushUnderWay(fields, contribution, self._peer, self._memory, self.log_waiting)

    def _outcome(self, servers: Sequence[int], answers: Sequence[Response]) -> Outcome:
        """Return the outcome that answers of these servers, of which number 0 is the first, make together."""
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

    # Pausing.

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
