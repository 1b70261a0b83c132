"""Batches on their way to the devices: each worker's share of each, one step ahead of the training."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from stratagem.errors import DataError
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
        """The batches, each put on the devices while the one before it trains."""
        own = self._shared_out() if self._shares else self._until_all_have_ended()
        ahead: list[Any] = []
        for batch in own:
            ahead.append(self._replicas.place(batch) if jax.tree.leaves(batch) else batch)
            if len(ahead) > 1:
                yield ahead.pop(0)
        yield from ahead

    def _with_rows(self) -> Iterator[Any]:
        """The batches but those without a row: the mean over no rows is no number."""
        return (batch for batch in self._batches if count_rows(batch) > 0)

    def _shared_out(self) -> Iterator[Any]:
        """This worker's share of each global batch; it may be empty where there are more workers than rows."""
        index, count = self._workers.index, self._workers.count
        for number, batch in enumerate(self._with_rows()):
            if number == 0 and count > 1:
                self._check_same(batch)
            yield take_rows(batch, share_of(count_rows(batch), index, count))

    def _until_all_have_ended(self) -> Iterator[Any]:
        """This worker's own batches, then empty ones for as long as others still have some.

        All take part in every update: a worker that simply stopped would keep the others waiting.
        """
        own = self._with_rows()
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
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(batch):
            array = np.asarray(leaf)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        told = [each.tobytes() for each in self._workers.gather(np.frombuffer(digest.digest(), np.uint8))]
        others = [str(worker) for worker, each in enumerate(told) if each != told[0]]
        if others:
            raise DataError(
                f"the first batch of worker {', '.join(others)} is not that of worker 0: distribute() shares out global "
                "batches, so every worker must pass the same ones in the same order (seed the shuffling, or give each "
                "worker its own with distribute_from_function)"
            )
