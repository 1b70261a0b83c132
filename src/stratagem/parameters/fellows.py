"""All servers of one model, as server 0 speaks to them."""

from collections.abc import Callable
from typing import TypeVar

from stratagem.parameters import protocol
from stratagem.parameters.config import StoreConfig
from stratagem.runtime.fan_out import fan_out
from stratagem.runtime.peers import Peers
from stratagem.runtime.wire import Fields

T = TypeVar("T")


class Fellows:
    """The servers, by their numbers; what concerns number 0, server 0 does by itself.

    Args:
        config: The model.
        peers: The tasks of the cluster.
    """

    def __init__(self, config: StoreConfig, peers: Peers) -> None:
        self._config = config
        self._peers = peers

    def call(self, server: int, call: str, fields: Fields, seconds: float = protocol.CALL_SECONDS) -> Fields:
        """Call another server about the model; one that is not there is not waited for."""
        told = {"model": self._config.name, **fields}
        return self._peers[self._config.servers[server]].call(call, told, timeout=seconds, wait=False).fields

    def incarnations(self) -> list[str]:
        """Which start of each of the others it is that answers now."""
        found = []
        for task in self._config.servers[1:]:
            self._peers[task].call("ping", timeout=protocol.CALL_SECONDS, wait=False)
            found.append(str(self._peers[task].info["incarnation"]))
        return found

    def everywhere(self, act: Callable[[int], T]) -> list[T]:
        """Do something for every server at once."""
        return fan_out(act, range(len(self._config.servers)))
