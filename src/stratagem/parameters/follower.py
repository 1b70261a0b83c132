"""How servers other than server 0 hear what is decided: they ask server 0, which leads."""

import time
from collections.abc import Sequence

from stratagem.errors import RemoteError, RolledBack
from stratagem.parameters import protocol
from stratagem.parameters.authority import Decision
from stratagem.parameters.config import StoreConfig
from stratagem.parameters.store import Lead
from stratagem.parameters.update_rules import Push
from stratagem.runtime.peers import Peers
from stratagem.runtime.wire import Fields, Response
from stratagem.runtime.wire.arrays import Array


class Follower(Lead):
    """Server 0 as another server sees it.

    Args:
        config: This server's part of the model.
        peers: The tasks of the cluster.
    """

    def __init__(self, config: StoreConfig, peers: Peers) -> None:
        self._config = config
        self._peers = peers

    def decide(self, epoch: str, push: Push, end: float, is_here: bool) -> tuple[Decision | None, list[str]]:
        """Tell server 0 of a push, which waits for the decision about it until the end."""
        seconds = max(0.0, end - time.monotonic())
        fields = {"epoch": epoch, "push": list(push), "is_here": is_here, "seconds": seconds}
        answer = self._ask(protocol.ARRIVED, fields).fields
        if answer[protocol.STATE] == protocol.PENDING:
            return None, answer["waiting"]
        return Decision.from_fields(*answer["decision"]), []

    def update(self, epoch: str, step: int) -> Decision | None:
        """Ask for the decision that led to a step."""
        answer = self._ask(protocol.DECISION, {"epoch": epoch, "step": step}).fields
        return Decision.from_fields(*answer["decision"]) if answer["decision"] else None

    def commons(self, epoch: str, step: int, partials: Sequence[Array]) -> Sequence[Array]:
        """Bring this server's share to server 0, which combines them."""
        return self._ask(protocol.PARTIALS, {"epoch": epoch, "step": step}, partials).tensors

    def broken(self, epoch: str, why: str) -> None:
        """Tell server 0 that this one cannot go on."""
        self._ask(protocol.BROKEN, {"epoch": epoch, "why": why})

    def _ask(self, call: str, fields: Fields, tensors: Sequence[Array] = ()) -> Response:
        """Ask server 0; if it has gone back, or has gone, so has everything that was pushed here."""
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
