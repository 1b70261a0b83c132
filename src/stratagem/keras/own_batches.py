"""Where workers take turns at whole batches, Keras goes through those of this worker only.

So callbacks, progress bars and logs are of batches that this worker trains on, numbered without gaps. Every worker still
draws all batches, so that all stay at the same place in the data.
"""

from collections.abc import Iterator
from typing import Any

from keras.src.backend.jax.trainer import JAXEpochIterator

from stratagem.strategies.base import Strategy

NOT_ONE = object()
"""Stands for the batches of an epoch in which this worker has none: Keras needs the logs of one at least."""
_END = object()


def keep_own_batches(iterator: Any, strategy: Strategy) -> None:
    """Have the iterator that Keras has made for a `fit` leave out the other workers' batches."""
    iterator.__class__ = OwnBatches
    iterator.strategy = strategy
    iterator.group, iterator.steps_per_execution = iterator.steps_per_execution, 1


class OwnBatches(JAXEpochIterator):  # type: ignore[misc]
    """The batches of each epoch that are this worker's.

    Attributes:
        strategy: Whose workers take turns.
        group: How many batches Keras wants at once.
    """

    strategy: Strategy
    group: int

    @property
    def num_batches(self) -> int | None:
        """How many are this worker's, where it is known how many there are."""
        whole, workers = super().num_batches, self.strategy.workers
        return None if whole is None else len(range(workers.index, whole, workers.count))

    def _enumerate_iterator(self) -> Iterator[tuple[int, int, Iterator[Any]]]:
        deal = self.strategy.feed.deal()
        begin, own, is_over, has_any = 0, [], False, False
        for _, _, batches in super()._enumerate_iterator():
            batch = next(batches, _END)
            is_over = batch is _END
            if is_over:
                break
            has_any = True
            if deal(batch) is not None:
                own.append(batch)
            if len(own) == self.group:
                yield begin, begin + self.group - 1, iter(own)
                begin, own = begin + self.group, []
        if has_any and begin == 0 and not own:
            own.append(NOT_ONE)
        if own:
            yield begin, begin + self.group - 1, iter(own)
        if is_over:
            with self.catch_stop_iteration():
                raise StopIteration
