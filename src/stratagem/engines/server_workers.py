"""The workers of a parameter-server job, which reach each other by way of the servers alone, and their batches."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from stratagem.cluster.roles import PS
from stratagem.engines.chief_files import ChiefFiles
from stratagem.engines.feeds import HOW_TO_SHARE, Batches, Deal, Feed, digest, nonempty, place_ahead
from stratagem.engines.replicas import Replicas
from stratagem.engines.rows import count_rows, share_of, take_rows
from stratagem.engines.server_model import ServerModel
from stratagem.engines.workers import Array, ServerPreemptionNotice, Workers
from stratagem.errors import DataError, StratagemError, StrategyError
from stratagem.parameters.rules import UpdateRule
from stratagem.runtime import Server
from stratagem.runtime.exits import at_normal_exit
from stratagem.runtime.peers import task_name

_STATUS_SECONDS = 5.0
"""How long a server may take to report its status."""


class ServerWorkers(Workers):
    """All workers of a job with parameter servers.

    Args:
        server: This task's own server.
        tasks: All workers.
        is_chief: Whether this one brings initial values, and writes what only one should write.
        rule: The update rule.
    """

    def __init__(self, server: Server, tasks: Sequence[str], is_chief: bool, rule: UpdateRule) -> None:
        self.server = server
        self.cluster = server.cluster
        self.index = list(tasks).index(server.task)
        self.count = len(tasks)
        self.is_chief = is_chief
        self.shares_batches = rule.shares_batches(len(tasks))
        self._are_in_step = rule.averages_pushes
        self._chief = tasks[0]
        self.files = ChiefFiles(server, tasks[0])
        self._models: list[ServerModel] = []
        self._forget_exit = at_normal_exit(self.close)

    def use(self, model: ServerModel) -> None:
        """Meet the other workers through this model from now on."""
        self._models.append(model)

    @property
    def model(self) -> ServerModel:
        """The model through which this worker meets the others; no push of it is under way.

        Raises:
            StrategyError: There is no model yet.
        """
        if not self._models:
            raise StrategyError("there is no model on the parameter servers yet: call strategy.init first")
        self._models[-1].settle()
        return self._models[-1]

    @property
    def has_model(self) -> bool:
        """Whether there is a model to meet through."""
        return bool(self._models)

    def gather(self, array: Array) -> Sequence[Array]:
        """Return the arrays of all workers that train in step with this one, in their order."""
        return self.model.rendezvous.gather("reduce", array) if self._are_in_step else [array]

    def status(self) -> dict[str, Any]:
        peers, statuses = self.server.peers, {}
        for index in self.server.cluster.task_indices(PS):
            task = task_name(PS, index)
            try:
                statuses[task] = peers[task].call("status", timeout=_STATUS_SECONDS, wait=False).fields
            except StratagemError as error:
                statuses[task] = {"error": str(error)}
        return statuses

    def preemption_notice(self) -> ServerPreemptionNotice | None:
        """Return what tells the chief that this worker was asked to end; `None` where workers are not in step."""
        return ServerPreemptionNotice(self.server, [self._chief], self._chief) if self._are_in_step else None

    def close(self) -> None:
        """Leave the servers, having finished. Also called when this process ends well."""
        self._forget_exit()
        for model in self._models:
            model.close()
        self.server.stop()


class ServerFeed(Feed):
    """Deals batches out among workers: a share of each to workers in step, else each batch to one worker."""

    shares_evaluation = False

    def __init__(self, replicas: Replicas, workers: ServerWorkers) -> None:
        self._replicas = replicas
        self._workers = workers
        self.takes_turns = not workers.shares_batches
        self._passes = itertools.count()

    def share(self, batches: Iterable[Any]) -> Batches:
        number = next(self._passes)

        def shares() -> Iterator[Any]:
            deal = self._deal(number)
            dealt = (deal(batch, rows) for batch in batches if (rows := count_rows(batch)) > 0)
            return (share for share in dealt if share is not None)

        if self._workers.shares_batches:
            return Batches(lambda: place_ahead(shares(), self._replicas))
        return Batches(lambda: self._then_pause(shares()))

    def deal(self) -> Deal:
        """Begin a pass: a share of each batch for workers in step, else batch i whole to worker i mod W."""
        return self._deal(next(self._passes))

    def own(self, batches: Iterable[Any]) -> Batches:
        """Return batches that are this worker's alone; they may end before or after the others'."""
        return Batches(lambda: self._then_pause(nonempty(batches)))

    def _then_pause(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield all batches; once the last is pushed, nobody waits for this worker until it pushes again."""
        yield from place_ahead(batches, self._replicas)
        self._pause()

    def rest(self) -> None:
        """Tell the other workers not to wait for this one, unless they share each batch out and rest at the same time."""
        if not self._workers.shares_batches:
            self._pause()

    def _pause(self) -> None:
        if self._workers.has_model:
            self._workers.model.client.pause()

    def _deal(self, number: int) -> Callable[..., Any]:
        """Return a `Deal` that may also be given the number of rows, if they have been counted."""
        index, count = self._workers.index, self._workers.count
        numbers = itertools.count()

        def share(batch: Any, rows: int | None = None) -> Any:
            if next(numbers) == 0 and self._workers.has_model:
                self._check_same(number, batch)
            counted = count_rows(batch) if rows is None else rows
            return take_rows(batch, share_of(counted, index, count))

        def take_turn(batch: Any, rows: int | None = None) -> Any:
            return batch if next(numbers) % count == index else None

        return share if self._workers.shares_batches else take_turn

    def _check_same(self, number: int, batch: Any) -> None:
        try:
            self._workers.model.rendezvous.check_same(number, digest(batch))
        except StrategyError as error:
            raise DataError(f"{error}: {HOW_TO_SHARE}") from error
