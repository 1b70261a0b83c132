"""The workers of a parameter-server job, as one of them sees the others: by way of the servers alone."""

from collections.abc import Sequence
from typing import Protocol

from stratagem.cluster import ClusterSpec
from stratagem.engines.chief_files import ChiefFiles
from stratagem.engines.parting import ServerParting
from stratagem.engines.workers import Array
from stratagem.errors import StrategyError
from stratagem.parameters.client import ServerClient
from stratagem.parameters.rendezvous import Rendezvous
from stratagem.parameters.rules import Sync, UpdateRule
from stratagem.runtime import Server
from stratagem.runtime.exits import at_normal_exit


class Served(Protocol):
    """A model on the servers, as far as workers need it to meet.

    Attributes:
        client: Calls the servers.
        rendezvous: Where its workers meet.
    """

    client: ServerClient
    rendezvous: Rendezvous

    def settle(self) -> object:
        """Wait for what is under way."""
        ...

    def close(self) -> None:
        """Wait for what is under way, and end."""
        ...


class ServerWorkers:
    """All workers of a job with parameter servers.

    Args:
        server: This task's own server.
        tasks: All workers.
        is_chief: Whether this one brings initial values, and writes what only one should write.
        rule: The update rule.
    """

    def __init__(self, server: Server, tasks: Sequence[str], is_chief: bool, rule: UpdateRule) -> None:
        self.server = server
        self.cluster: ClusterSpec | None = server.cluster
        self.index = list(tasks).index(server.task)
        self.count = len(tasks)
        self.is_chief = is_chief
        self.shares_batches = isinstance(rule, Sync) and rule.shares_batches(len(tasks))
        self._is_sync = isinstance(rule, Sync)
        self._chief = tasks[0]
        self.files: ChiefFiles | None = ChiefFiles(server, tasks[0])
        self._models: list[Served] = []
        self._forget_exit = at_normal_exit(self.close)

    def use(self, model: Served) -> None:
        """Meet the others by way of this model from now on."""
        self._models.append(model)

    @property
    def model(self) -> Served:
        """The model by which this worker meets the others; nothing of it is under way.

        Raises:
            StrategyError: There is no model yet.
        """
        if not self._models:
            raise StrategyError("there is no model on the parameter servers yet: call strategy.init first")
        self._models[-1].settle()
        return self._models[-1]

    @property
    def has_model(self) -> bool:
        """Whether there is a model to meet by."""
        return bool(self._models)

    def gather(self, array: Array) -> Sequence[Array]:
        """The arrays of all workers that train in step with this one, in their order."""
        return self.model.rendezvous.gather("reduce", array) if self._is_sync else [array]

    def parting(self) -> ServerParting | None:
        """How one that is asked to end lets the chief know; `None` where workers are not in step."""
        return ServerParting(self.server, [self._chief], self._chief) if self._is_sync else None

    def close(self) -> None:
        """Say that this worker has finished. Also done when this process ends well."""
        self._forget_exit()
        for model in self._models:
            model.close()
        self.server.stop()
