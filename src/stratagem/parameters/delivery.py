"""One push on its way: sent to every server that has to do with it, asked after until all have made use of it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stratagem.errors import RolledBack
from stratagem.parameters import protocol
from stratagem.parameters.machines import Push
from stratagem.parameters.planning import Pieces
from stratagem.parameters.protocol import OK, PENDING, SEND, STATE, Reading
from stratagem.runtime.wire import Fields, Response
from stratagem.runtime.wire.arrays import Array


class Asked(Protocol):
    """A server that was asked something, and has not been listened to yet."""

    def answer(self) -> Response:
        """What it says; raises `RolledBack` if the servers have gone back."""
        ...

    def abandon(self) -> None:
        """Do without its answer."""
        ...


@dataclass(slots=True)
class Contribution:
    """What a worker brings to an update.

    Attributes:
        rows: How many examples it is of; none: there are no gradients.
        gradients: For each server, those of its pieces.
        commons: What all gradients have in common.
        metrics: To be averaged over the pushes of one update.
        base: The step of the parameters that the gradients were computed on; the newest heard of by default.
    """

    rows: int
    gradients: Pieces
    commons: Sequence[Array] = ()
    metrics: Mapping[str, Reading] = field(default_factory=dict)
    base: int | None = None


class Delivery:
    """One attempt to bring a push to its servers.

    Args:
        push: The push.
        epoch: The stretch of history that it belongs to.
        brought: What it brings.
        ask: Sends a call to a server.
        waiting: Called with those that server 0 waits for, and for how long it has.

    Attributes:
        epoch: See above.
    """

    def __init__(
        self,
        push: Push,
        epoch: str,
        brought: Contribution,
        ask: Callable[[int, str, Fields, Sequence[Array]], Asked],
        waiting: Callable[[list[str], float], None],
    ) -> None:
        self._push = push
        self.epoch = epoch
        self._brought = brought
        self._ask = ask
        self._waiting = waiting
        self._asked: dict[int, Asked] = {}
        self._has_failed = False
        self._began = time.monotonic()

    def send(self, server: int) -> None:
        """Send a server its part, and listen to it later."""
        self._asked[server] = self._ask_it(server)

    def _ask_it(self, server: int, again: bool = False) -> Asked:
        brought = self._brought
        fields = {
            "epoch": self.epoch,
            "push": list(self._push),
            "again": again,
            "metrics": brought.metrics if server == 0 else {},
        }
        tensors = [*brought.gradients[server], *brought.commons] if brought.rows and not again else ()
        return self._ask(server, protocol.PUSH, fields, tensors)

    def answer(self, server: int) -> Response:
        """What a server says once it has made use of its part, which it is sent now if it was not before.

        Raises:
            RolledBack: The servers have gone back; or another did not get its part, for which this one waits in vain.
        """
        try:
            asked = self._asked.pop(server, None) or self._ask_it(server)
            while True:
                answer = asked.answer()
                state = answer.fields[STATE]
                if state == OK:
                    return answer
                if self._has_failed:
                    raise RolledBack("another server did not get its part of a push")
                if state == PENDING and server == 0:
                    self._waiting(answer.fields["waiting"], time.monotonic() - self._began)
                asked = self._ask_it(server, again=state != SEND)
        except BaseException:
            self._has_failed = True
            raise

    def again(self) -> "Delivery":
        """Another attempt, after this one has failed."""
        self.abandon()
        return Delivery(self._push, self.epoch, self._brought, self._ask, self._waiting)

    def abandon(self) -> None:
        """Listen to nobody any more."""
        for asked in self._asked.values():
            asked.abandon()
        self._asked.clear()
