"""A push: what a worker contributes to an update, the push while it is under way, what servers answer, its outcome."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stratagem.errors import RolledBack, TaskReplaced
from stratagem.parameters import protocol
from stratagem.parameters.config import StoreConfig
from stratagem.parameters.planning import Pieces
from stratagem.parameters.protocol import OK, PENDING, SEND, STATE, Reading
from stratagem.runtime.host_memory import Buffers
from stratagem.runtime.wire import SHARED_MEMORY, Fields, Peer, Response
from stratagem.runtime.wire.arrays import Array
from stratagem.runtime.wire.error_translation import first_line
from stratagem.runtime.wire.peer import PendingCall

_BUFFERS = 3
VOID = "void"
"""The kind of a push that does not count, because the servers went back behind it."""


@dataclass(slots=True)
class Contribution:
    """What a worker contributes to an update.

    Attributes:
        rows: The number of examples; with none there are no gradients.
        gradients: For each server, those of its pieces.
        commons: What all gradients have in common.
        metrics: To be averaged over the pushes of one update.
        base: The step of the parameters that the gradients were computed on; the newest known by default.
        tables: For each server, ids and gradients of rows, for each stack of tables in turn.
        wanted: For each server, for each stack the ids of rows to be sent with the parameters.
    """

    rows: int
    gradients: Pieces
    commons: Sequence[Array] = ()
    metrics: Mapping[str, Reading] = field(default_factory=dict)
    base: int | None = None
    tables: Pieces | None = None
    wanted: Pieces | None = None


@dataclass
class Outcome:
    """What became of a push.

    Attributes:
        kind: Applied, dropped, counted for an update to come, or void.
        step: The global step of the parameters that came back.
        leaves: The newest parameters of each server; none if the push was only counted.
        metrics: The means over all pushes of the update, if it was of several.
        staleness: How many updates came between the parameters that it was computed on and its own; `None` if it
            was not applied.
        update: The global step that the push made; that of the parameters if it made none.
        rows: The rows that were wanted, from each server for each stack of tables; `None` if they did not come.
    """

    kind: str
    step: int
    leaves: Pieces | None = None
    metrics: dict[str, Reading] = field(default_factory=dict)
    staleness: int | None = None
    update: int = 0
    rows: Pieces | None = None

    def __post_init__(self) -> None:
        self.update = self.update or self.step


class FreeMemory:
    """A worker's own memory for the parameters of one server.

    Args:
        config: What the server holds.
    """

    def __init__(self, config: StoreConfig) -> None:
        self._buffers = [
            (Buffers(_BUFFERS), leaf.spec.shape, np.dtype(leaf.spec.dtype)) for leaf in config.leaves
        ]

    def take(self) -> list[Array]:
        """Memory for all parameters of the server that nobody uses any more."""
        return [buffers.take(shape, dtype) for buffers, shape, dtype in self._buffers]


def receive(call: PendingCall, seconds: float, memory: FreeMemory | None = None, others: int = 0) -> Response:
    """Wait for a server's answer.

    Args:
        call: The call that the server is to answer.
        seconds: How long to wait.
        memory: For the parameters in the answer, unless they can stay in shared memory; `None` if there are none.
        others: How many arrays may follow the parameters.

    Raises:
        RolledBack: The servers have gone back to an earlier step, or are about to.
        TaskReplaced: A newer start of this worker has taken its place.
    """
    is_lent = memory is not None and call.transport == SHARED_MEMORY
    into = None if is_lent or memory is None else [*memory.take(), *[None] * others]
    answer = call.answer(timeout=seconds, into=into, lend=is_lent)
    match answer.fields.get(protocol.STATE):
        case protocol.ROLLED_BACK:
            raise RolledBack(str(answer.fields["why"]))
        case protocol.REPLACED:
            raise TaskReplaced(str(answer.fields["why"]))
    return answer


class PushUnderWay:
    """A push that is sent to every server that takes part in updates, under one number however often it is sent.

    Args:
        fields: What identifies it to every server: the model, the epoch, and the push itself.
        contribution: What it contributes.
        peer: Finds a server by its number.
        memory: For the parameters that each server sends.
        log_waiting: Called with whom server 0 waits for, and for how long.

    Attributes:
        epoch: The stretch of the servers' history that it belongs to.
    """

    def __init__(
        self,
        fields: Fields,
        contribution: Contribution,
        peer: Callable[[int], Peer],
        memory: Sequence[FreeMemory],
        log_waiting: Callable[[str, float], None],
    ) -> None:
        self.epoch: str = fields["epoch"]
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
