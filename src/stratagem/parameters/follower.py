"""How servers other than server 0 hear what is decided: they ask server 0, which leads."""

import time
from collections.abc import Sequence

from stratagem.errors import RemoteError, RolledBack
from stratagem.parameters import protocol
from stratagem.parameters.authority import Decision
from stratagem.parameters.machines import Push
from stratagem.parameters.part import ModelPart
from stratagem.runtime.peers import Peers
from stratagem.runtime.wire import Fields, Response
from stratagem.runtime.wire.arrays import Array


class Follower:
    """Server 0 as another server sees it.

    Args:
        part: This server's part of the model.
        peers: The tasks of the cluster.
    """

    def __init__(self, part: ModelPart, peers: Peers) -> None:
        self._part = part
        self._peers = peers

    def decide(self, epoch: str, push: Push, end: float, is_here: bool) -> tuple[Decision | None, list[str]]:
        """See `Lead`."""
        told = {
            "epoch": epoch,
            "push": list(push),
            "is_here": is_here,
            "seconds": max(0.0, end - time.monotonic()),
        }
        answer = self._ask(protocol.ARRIVED, told).fields
        if answer[protocol.STATE] == protocol.PENDING:
            return None, answer["waiting"]
        return Decision.from_fields(answer["decision"]), []

    def made(self, epoch: str, step: int) -> Decision | None:
        """See `Lead`."""
        answer = self._ask(protocol.DECISION, {"epoch": epoch, "step": step}).fields
        return Decision.from_fields(answer["decision"]) if answer["decision"] else None

    def commons(self, epoch: str, step: int, partials: Sequence[Array]) -> Sequence[Array]:
        """See `Lead`."""
        return self._ask(protocol.PARTIALS, {"epoch": epoch, "step": step}, partials).tensors

    def cut(self, step: int, values: list[Array]) -> None:
        """See `Lead`."""
        self._part.cut(step, values)

    def broken(self, epoch: str, why: str) -> None:
        """See `Lead`."""
        self._ask(protocol.BROKEN, {"epoch": epoch, "why": why})

    def _ask(self, call: str, told: Fields, tensors: Sequence[Array] = ()) -> Response:
        """Ask server 0; if it has gone back, or has gone, so has everything that was pushed here."""
        config = self._part.config
        fields = {"model": config.name, "server": config.server, **told}
        try:
            answer = self._peers[config.servers[0]].call(
                call, fields, tensors, timeout=protocol.CALL_SECONDS, wait=False
            )
        except RemoteError as error:
            raise RolledBack(f"{config.servers[0]} does not answer: {error}") from error
        if answer.fields[protocol.STATE] == protocol.ROLLED_BACK:
            raise RolledBack("the servers have gone back to an earlier step")
        return answer
