"""Batches for the workers of a parameter-server job: shares of each for those in step, else each batch to one."""

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from stratagem.errors import DataError, StrategyError
from stratagem.strategies.batches import HOW_TO_SHARE, Batches, digest, placed_ahead, with_rows
from stratagem.strategies.replicas import Replicas
from stratagem.strategies.rows import count_rows, share_of, take_rows
from stratagem.strategies.server_workers import ServerWorkers


class ServerFeed:
    """Deals batches out among workers that know of each other by way of servers only.

    Args:
        replicas: The devices of this worker.
        workers: The workers.
    """

    def __init__(self, replicas: Replicas, workers: ServerWorkers) -> None:
        self._replicas = replicas
        self._workers = workers
        self._numbers = count()

    def share(self, batches: Iterable[Any]) -> Batches:
        """This worker's part of global batches."""
        number = next(self._numbers)
        if self._workers.shares_batches:
            return Batches(lambda: placed_ahead(self._shares(batches, number), self._replicas))
        return Batches(lambda: self._then_pause(self._turns(batches)))

    def own(self, batches: Iterable[Any]) -> Batches:
        """Batches that are this worker's alone; they may end before or after the others'."""
        return Batches(lambda: self._then_pause(with_rows(batches)))

    def _then_pause(self, batches: Iterable[Any]) -> Iterator[Any]:
        """All of them; when the last has been pushed, nobody waits for this worker until it pushes again."""
        yield from placed_ahead(batches, self._replicas)
        if self._workers.has_model:
            self._workers.link.pause()

    def _shares(self, batches: Iterable[Any], number: int) -> Iterator[Any]:
        """A share of each; empty where there are more workers than rows."""
        for place, batch in enumerate(with_rows(batches)):
            if place == 0 and self._workers.has_model:
                self._check_same(number, batch)
            rows = share_of(count_rows(batch), self._workers.index, self._workers.count)
            yield take_rows(batch, rows)

    def _turns(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Batch i goes to worker i mod W, whole."""
        for place, batch in enumerate(with_rows(batches)):
            if place % self._workers.count == self._workers.index:
                yield batch

    def _check_same(self, number: int, batch: Any) -> None:
        try:
            self._workers.link.check_same(number, digest(batch))
        except StrategyError as error:
            raise DataError(f"{error}: {HOW_TO_SHARE}") from error
