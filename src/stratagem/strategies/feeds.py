"""How batches reach the workers of a strategy: who gets what of them."""

from collections.abc import Iterable
from typing import Any, Protocol

from stratagem.strategies.inputs import DistributedBatches
from stratagem.strategies.replicas import Replicas
from stratagem.strategies.workers import Workers


class Feed(Protocol):
    """Deals batches out among workers."""

    def share(self, batches: Iterable[Any]) -> Iterable[Any]:
        """This worker's part of global batches, on its devices."""
        ...

    def own(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Batches that are this worker's alone, on its devices."""
        ...


class InStepFeed:
    """For workers that all take part in every update.

    Args:
        replicas: The devices of this worker.
        workers: The workers.
    """

    def __init__(self, replicas: Replicas, workers: Workers) -> None:
        self._replicas = replicas
        self._workers = workers

    def share(self, batches: Iterable[Any]) -> Iterable[Any]:
        """This worker's share of each global batch."""
        return DistributedBatches(batches, self._replicas, self._workers, shares=True)

    def own(self, batches: Iterable[Any]) -> Iterable[Any]:
        """All of them, then empty ones until all workers have come to the end of theirs."""
        return DistributedBatches(batches, self._replicas, self._workers, shares=False)
