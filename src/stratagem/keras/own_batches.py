"""Where a worker trains on batches of its own, or on parts of them, Keras goes through those of this worker only.

So callbacks, progress bars and logs are of batches that this worker trains on, numbered without gaps. Every worker still
draws all batches, so that all stay at the same place in the data. And steps can be told of the batches to follow.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from keras.src.backend.jax.trainer import JAXEpochIterator

from stratagem.engines.feeds import Deal, look_ahead
from stratagem.strategies.base import Strategy

NOT_ONE = object()
"""Stands for the batches of an epoch in which this worker has none: Keras needs the logs of one at least."""
_END = object()


def keep_own_batches(
    iterator: Any,
    strategy: Strategy,
    looks_ahead: bool = False,
    part: Callable[[Deal, Any], Any] = lambda deal, batch: deal(batch),
) -> None:
    """Have the iterator that Keras has made for a `fit` leave out what is the other workers'.

    Args:
        iterator: The iterator.
        strategy: Whose workers they are.
        looks_ahead: Whether the steps of its engine want to know the batches to follow.
        part: Makes what this worker trains on of a batch that is dealt out; `None` if it is another's.
    """
    iterator.__class__ = OwnBatches
    iterator.strategy, iterator.looks_ahead, iterator.part = strategy, looks_ahead, part
    iterator.group, iterator.steps_per_execution = iterator.steps_per_execution, 1


class OwnBatches(JAXEpochIterator):  # type: ignore[misc]
    """What is this worker's of the batches of each epoch.

    Attributes:
        strategy: Whose workers share them out.
        looks_ahead: Whether steps want to know the batches to follow.
        part: Makes what is this worker's of a batch.
        group: How many batches Keras wants at once.
    """

    strategy: Strategy
    looks_ahead: bool
    part: Callable[[Deal, Any], Any]
    group: int

    @property
    def num_batches(self) -> int | None:
        """How many are this worker's, where it is known how many there are."""
        whole: int | None = super().num_batches
        workers = self.strategy.workers
        if whole is None or not self.strategy.feed.takes_turns:
            return whole
        return len(range(workers.index, whole, workers.count))

    def _enumerate_iterator(self) -> Iterator[tuple[int, int, Iterator[Any]]]:
        begin, drawn = 0, _Drawn()
        own = self._own(drawn)
        lookahead = self.strategy.engine.replicas.lookahead if self.looks_ahead else None
        if lookahead is not None:
            own = look_ahead(own, lookahead)
        for first in own:
            yield (
                begin,
                begin + self.group - 1,
                itertools.chain([first], itertools.islice(own, self.group - 1)),
            )
            begin += self.group
        if drawn.count and begin == 0:
            yield begin, begin + self.group - 1, iter([NOT_ONE])
        if drawn.is_over:
            with self.catch_stop_iteration():
                raise StopIteration

    def _own(self, drawn: "_Drawn") -> Iterator[Any]:
        """What is this worker's, one after the other."""
        deal = self.strategy.feed.deal()
        for _, _, batches in super()._enumerate_iterator():
            batch = next(batches, _END)
            if batch is _END:
                drawn.is_over = True
                return
            drawn.count += 1
            part = self.part(deal, batch)
            if part is not None:
                yield part


@dataclass
class _Drawn:
    """What there was of the batches of all workers in an epoch.

    Attributes:
        count: How many.
        is_over: Whether they ended before Keras expected it.
    """

    count: int = 0
    is_over: bool = False
