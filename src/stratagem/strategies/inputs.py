"""Batches on their way to the devices: each worker's share of each, one step ahead of the training."""

from collections.abc import Iterable, Iterator
from typing import Any

from stratagem.strategies.replicas import Replicas
from stratagem.strategies.rows import count_rows, share_of, take_rows
from stratagem.strategies.workers import Workers


class DistributedBatches:
    """Batches on the devices of this worker; may be iterated as often as what it was made of.

    Args:
        batches: Host batches.
        replicas: The devices of this worker.
        workers: The workers.
        shares: Whether the batches are global, and this worker is to take its share of each.
    """

    def __init__(self, batches: Iterable[Any], replicas: Replicas, workers: Workers, *, shares: bool) -> None:
        self._batches = batches
        self._replicas = replicas
        self._workers = workers
        self._shares = shares

    def __iter__(self) -> Iterator[Any]:
        ahead: list[Any] = []
        for batch in self._own():
            ahead.append(self._replicas.place(batch))
            if len(ahead) > 1:
                yield ahead.pop(0)
        yield from ahead

    def _own(self) -> Iterator[Any]:
        for batch in self._batches:
            rows = count_rows(batch)
            if rows == 0:
                continue  # the mean over no rows is no number
            yield (
                take_rows(batch, share_of(rows, self._workers.index, self._workers.count))
                if self._shares
                else batch
            )
