"""Batches for the workers of a parameter-server job: shares of each for those in step, else each batch to one."""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import jax
import numpy as np

from stratagem.errors import DataError, StrategyError
from stratagem.strategies.ahead import Batches, placed_ahead
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
        """Batches that are this worker's alone."""
        if self._workers.shares_batches:
            return Batches(lambda: placed_ahead(self._in_step(batches), self._replicas))
        return Batches(lambda: self._then_pause(_with_rows(batches)))

    def _then_pause(self, batches: Iterable[Any]) -> Iterator[Any]:
        """All of them; when the last has been pushed, nobody waits for this worker until it pushes again."""
        yield from placed_ahead(batches, self._replicas)
        if self._workers.has_model:
            self._workers.link.pause()

    def _shares(self, batches: Iterable[Any], number: int) -> Iterator[Any]:
        """A share of each; empty where there are more workers than rows."""
        for place, batch in enumerate(_with_rows(batches)):
            if place == 0 and self._workers.has_model:
                self._check_same(number, batch)
            rows = share_of(count_rows(batch), self._workers.index, self._workers.count)
            yield take_rows(batch, rows)

    def _turns(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Batch i goes to worker i mod W, whole."""
        for place, batch in enumerate(_with_rows(batches)):
            if place % self._workers.count == self._workers.index:
                yield batch

    def _in_step(self, batches: Iterable[Any]) -> Iterator[Any]:
        """All of them, then empty ones for as long as others still have some."""
        own = _with_rows(batches)
        empty: Any = None
        while True:
            batch = next(own, None)
            told = self._workers.link.gather("whether there is more data", np.asarray(batch is not None))
            if not any(bool(each) for each in told):
                return
            if batch is not None:
                empty = take_rows(batch, slice(0, 0))
            yield empty if batch is None else batch

    def _check_same(self, number: int, batch: Any) -> None:
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(batch):
            array = np.asarray(leaf)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        try:
            self._workers.link.check_same(number, digest.digest())
        except StrategyError as error:
            raise DataError(
                f"{error}: distribute() shares out global batches, so every worker must pass the same ones in the same "
                "order (seed the shuffling, or give each worker its own with distribute_from_function)"
            ) from error


def _with_rows(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches but those without a row: the mean over no rows is no number."""
    return (batch for batch in batches if count_rows(batch) > 0)
