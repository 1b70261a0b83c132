"""What a worker does with the servers: pushes gradients, pulls parameters, sets and keeps values, meets the others.

Every push has a number. It is sent again, under the same number, when a connection breaks, and the servers apply it
once; when the servers have gone back to an earlier step it is void, and the worker goes on from there.
"""

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from stratagem.errors import RolledBack, StratagemError
from stratagem.keep import ShardRecord
from stratagem.parameters import protocol
from stratagem.parameters.agreements import Label
from stratagem.parameters.delivery import Contribution, Delivery
from stratagem.parameters.machines import Push
from stratagem.parameters.meetings import Meetings
from stratagem.parameters.planning import Pieces
from stratagem.parameters.protocol import OK, STATE, Reading
from stratagem.parameters.tie import GONE, LONG, Tie
from stratagem.runtime.wire import Response
from stratagem.runtime.wire.arrays import Array

_log = logging.getLogger("stratagem")
VOID = "void"
"""A push that the servers went back behind."""


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
    metrics: dict[str, Reading] = field(default_factory=dict)
    staleness: int | None = None
    update: int = 0

    def __post_init__(self) -> None:
        self.update = self.update or self.step


class Link:
    """One worker's work with the servers of one model.

    Args:
        tie: Its tie to them.

    Attributes:
        meetings: Its meetings with the other workers.
        dropped: How many pushes of this worker were dropped.
    """

    def __init__(self, tie: Tie) -> None:
        self.meetings = Meetings(tie, lambda: self.has_pushed)
        self.dropped = 0
        self._tie = tie
        self._sequence = 0
        self._pusher: ThreadPoolExecutor | None = None
        self._is_paused = False
        self._pulled_epoch = ""
        tie.server.when_leader_restarts(self._tell_again)

    @property
    def step(self) -> int:
        """The newest global step that was heard of."""
        return self._tie.step

    @property
    def has_pushed(self) -> bool:
        """Whether this worker has pushed anything so far."""
        return self._sequence > 0

    # Training.

    def pull(self) -> Outcome:
        """The newest parameters of every server."""
        return self._tie.persistent(lambda: self._outcome(self._tie.everywhere(self._pulled)))

    def pull_newer(self, than: int) -> Outcome | None:
        """The same, if they are newer than those of a step."""

        def act() -> Outcome | None:
            first = self._pulled(0, than)
            if first.fields["step"] <= than and self._pulled_epoch == self._tie.epoch:
                return None
            return (
                self.pull()
                if not first.tensors
                else self._outcome(
                    self._tie.everywhere(lambda server: self._pulled(server) if server else first)
                )
            )

        return self._tie.persistent(act)

    def _pulled(self, server: int, than: int = -1) -> Response:
        return self._tie.ask(server, protocol.PULL, {"epoch": self._tie.epoch, "than": than}).answer()

    def push(self, brought: Contribution) -> Outcome:
        """Push gradients, and come back with the newest parameters once they have been made use of."""
        return self._finish(self._delivery(brought))

    def begin(self, brought: Contribution) -> Callable[[], Outcome]:
        """The same in two halves: send the gradients now; what comes back waits for it, and is what `push` returns.

        Nothing else may be asked of the servers in between.
        """
        if not self._tie.is_near:
            # Answers that nobody receives would keep the servers from going on.
            if self._pusher is None:
                self._pusher = ThreadPoolExecutor(1, thread_name_prefix="stratagem-push")
            return self._pusher.submit(self.push, brought).result
        delivery = self._delivery(brought)
        if delivery is not None:
            try:
                for server in sorted(self._tie.participants):
                    delivery.send(server)
            except GONE:
                delivery.abandon()  # it is sent again, and the loss is seen to, when the answer is asked for
        return partial(self._finish, delivery)

    def _delivery(self, brought: Contribution) -> Delivery | None:
        """A push that is still to be sent; `None` if it is void before it is."""
        tie = self._tie
        with tie.turn:
            self._is_paused = False
            if self._pulled_epoch != tie.epoch:  # the servers have gone back since
                return None
            self._sequence += 1
            base = tie.step if brought.base is None else brought.base
            push = Push(tie.worker, tie.server.incarnation, self._sequence, base, brought.rows)
            return Delivery(push, tie.epoch, brought, tie.ask, self._say_who)

    def _finish(self, delivery: Delivery | None) -> Outcome:
        """Wait until the servers have made use of a push, however often it has to be sent."""
        with self._tie.turn:
            while delivery is not None:
                try:
                    answers = self._tie.on_participants(delivery.answer)
                    kinds = {answer.fields["kind"] for answer in answers if answer is not None}
                    # Counted here, and applied by the time that another server was asked: all have it by now.
                    return self._outcome(answers) if len(kinds) == 1 else self.pull()
                except GONE as error:
                    delivery = delivery.again()
                    self._tie.connect(error)
                if self._tie.epoch != delivery.epoch:
                    break
            return replace(self.pull(), kind=VOID)

    def _outcome(self, answers: Sequence[Response | None]) -> Outcome:
        first = answers[0]
        if first is None:
            raise RolledBack("server 0 said nothing, which has to do with everything")
        kind = first.fields.get("kind", "pulled")
        self._pulled_epoch = self._tie.epoch
        self._tie.step = first.fields["step"]
        if kind == "dropped":
            self.dropped += 1
            _log.info("%s: a push was dropped: %s", self._tie.server.task, first.fields["why"])
        leaves = [answer.tensors if answer is not None else [] for answer in answers]
        return Outcome(
            kind,
            self._tie.step,
            leaves if any(leaves) else None,
            first.fields.get("metrics", {}),
            first.fields.get("staleness"),
            first.fields.get("update", 0),
        )

    def _say_who(self, waiting: list[str], seconds: float) -> None:
        self._tie.say_waiting(f"for {', '.join(waiting) or 'the other servers'}", seconds)

    # Pausing.

    def pause(self) -> None:
        """Tell the servers that this worker's data have ended for now."""
        with self._tie.turn:
            self._is_paused = True
            self._tie.persistent(lambda: self._tie.call(0, protocol.PAUSE, {"worker": self._tie.worker}))

    def _tell_again(self) -> None:
        """A leader that was started again does not know that this worker pauses, and would wait for it."""
        try:
            with self._tie.turn:
                if self._is_paused:
                    self._tie.connect("server 0 was started again")
                    self.pause()
        except (StratagemError, SystemExit) as error:
            _log.info("%s could not tell that it pauses: %s", self._tie.server.task, error)

    # All values: reading, setting, keeping.

    def fetch(self) -> tuple[int, Pieces]:
        """All values of all servers at one step."""

        def act() -> tuple[int, Pieces]:
            with self._standing_still() as step:
                answers = self._tie.everywhere(lambda server: self._read(server, step))
            found = {answers[server].fields["step"] for server in self._tie.participants}
            if found != {step}:  # held for too long
                raise RolledBack(
                    f"values of steps {sorted(found)} came together, those of {step} were asked for"
                )
            return step, [answer.tensors for answer in answers]

        return self._tie.persistent(act)

    def agreed(self, label: Label) -> Pieces:
        """The parameters of every server that all workers look at under a label, or a newer one."""
        tie = self._tie

        def act() -> Pieces:
            while True:
                self.meetings.agree(label)
                answers = tie.everywhere(
                    lambda server: tie.call(server, protocol.MARKED, {"epoch": tie.epoch}, seconds=LONG)
                )
                # Another worker may have come to a newer label between two answers.
                if len({tuple(answer.fields["label"]) for answer in answers}) == 1:
                    return [answer.tensors for answer in answers]

        return tie.persistent(act)

    def _read(self, server: int, step: int) -> Response:
        """All that a server holds; one without variables is at no step."""
        at = step if server in self._tie.participants else 0
        return self._tie.call(server, protocol.READ, {"epoch": self._tie.epoch, "step": at}, seconds=LONG)

    @contextmanager
    def _standing_still(self) -> Iterator[int]:
        """Keep the servers from making updates; the step at which they stand."""
        own = self._tie.server
        holder = {"holder": f"{own.task} ({own.incarnation})"}
        step = self._tie.call(0, protocol.HOLD, holder).fields["step"]
        try:
            yield step
        finally:
            self._tie.call(0, protocol.RELEASE, holder)

    def assign(self, values: Sequence[Mapping[int, Array]], step: int | None = None) -> None:
        """Set values on the servers, on all of them between the same two updates.

        Args:
            values: For each server, the new ones of what it holds, by their places in `StoreConfig.held`.
            step: The global step from which training goes on with them: all that was pushed before is void, also
                of other workers, which go on from there too. `None`: it goes on as it is.
        """
        tie = self._tie
        token = secrets.token_hex(8)
        servers = [server for server, held in enumerate(values) if held]

        def stage(server: int) -> None:
            told = {"epoch": tie.epoch, "token": token, "indices": list(values[server])}
            if server in servers:
                tie.call(server, protocol.STAGE, told, list(values[server].values()), seconds=LONG)

        def act() -> None:
            tie.everywhere(stage)
            told = {"epoch": tie.epoch, "token": token, "servers": servers, "step": step}
            answer = tie.call(0, protocol.ASSIGN, told, seconds=LONG).fields
            tie.epoch, tie.step = answer["epoch"], answer["step"]

        tie.persistent(act)

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
                told = {"epoch": self._tie.epoch, "root": root, "step": step}
                answers = self._tie.everywhere(
                    lambda server: self._tie.call(server, protocol.KEEP, told, seconds=LONG)
                )
            return step, all(answer.fields["is_reached"] for answer in answers)

        return self._tie.persistent(act)

    def kept(self, root: str, step: int) -> list[ShardRecord]:
        """Wait until every server has written its shard of a checkpoint; to be called from any thread.

        Raises:
            KeepError: One could not.
            RemoteError: A server was lost meanwhile, or has gone back.
        """

        def ask(server: int) -> ShardRecord:
            while True:
                fields = self._tie.call(server, protocol.KEPT, {"root": root, "step": step}).fields
                if fields[STATE] == OK:
                    return ShardRecord.from_dict(fields["record"])

        return [ask(server) for server in range(self._tie.server_count)]

    def close(self) -> None:
        """End its threads."""
        self._tie.close()
        if self._pusher is not None:
            self._pusher.shutdown(wait=False, cancel_futures=True)
