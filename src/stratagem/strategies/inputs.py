"""Batches on their way to the devices: each worker's share of each, one step ahead of the training."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from stratagem.errors import DataError
from stratagem.strategies.batches import HOW_TO_SHARE, digest, placed_ahead, with_rows
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
        """The batches, each put on the devices while the one before it trains; in host memory if they read that."""
        own = self._shared_out() if self._shares else self._until_all_have_ended()
        return placed_ahead(own, self._replicas)

    def _shared_out(self) -> Iterator[Any]:
        """This worker's share of each global batch; it may be empty where there are more workers than rows."""
        index, count = self._workers.index, self._workers.count
        for number, batch in enumerate(with_rows(self._batches)):
            if number == 0 and count > 1:
                self._check_same(batch)
            yield batch if count == 1 else take_rows(batch, share_of(count_rows(batch), index, count))

    def _until_all_have_ended(self) -> Iterator[Any]:
        """This worker's own batches, then empty ones for as long as others still have some.

        All take part in every update: a worker that simply stopped would keep the others waiting.
        """
        own = with_rows(self._batches)
        empty: Any = None
        while True:
            batch = next(own, None)
            has_one = batch is not None
            if self._workers.count > 1:
                if not any(bool(each) for each in self._workers.gather(np.asarray(has_one))):
                    return
            elif not has_one:
                return
            if has_one:
                empty = take_rows(batch, slice(0, 0))
            yield batch if has_one else empty

    def _check_same(self, batch: Any) -> None:
        """Raise unless all workers were given the same first batch."""
        told = [each.tobytes() for each in self._workers.gather(np.frombuffer(digest(batch), np.uint8))]
        others = [str(worker) for worker, each in enumerate(told) if each != told[0]]
        if others:
            raise DataError(
                f"the first batch of worker {', '.join(others)} is not that of worker 0: {HOW_TO_SHARE}"
            )
