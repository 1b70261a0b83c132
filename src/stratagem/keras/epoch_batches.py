"""The batches of an epoch that are this worker's, as Keras goes through them.

Where workers take turns, callbacks, progress bars and logs are so of the batches that this worker trains on, numbered
without gaps. Every worker still draws all batches, so that all stay at the same place in the data. Steps can also be told
which batches follow.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental.sparse import JAXSparse
from keras.src.backend.jax.trainer import JAXEpochIterator

from stratagem.engines.feeds import Deal, look_ahead
from stratagem.strategies.base import Strategy

NO_BATCH = object()
"""Stands for the batches of an epoch in which this worker has none: Keras needs the logs of at least one."""
_END = object()


def keep_own_batches(
    iterator: Any, strategy: Strategy, share_of: Callable[[Deal, Any], Any], looks_ahead: bool = False
) -> None:
    """Make the iterator of a `fit` skip the batches of other workers.

    Args:
        iterator: The iterator, which Keras has made.
        strategy: The strategy of these workers.
        share_of: Returns this worker's share of a batch, given how batches are dealt out; `None` if it has none.
        looks_ahead: Whether the engine's steps are to know the batches that follow.
    """
    iterator.__class__ = OwnBatches
    iterator.strategy, iterator.share_of, iterator.looks_ahead = strategy, share_of, looks_ahead
    iterator.group, iterator.steps_per_execution = iterator.steps_per_execution, 1


class OwnBatches(JAXEpochIterator):  # type: ignore[misc]
    """This worker's shares of the batches of each epoch.

    Attributes:
        strategy: The strategy of these workers.
        share_of: Returns this worker's share of a batch.
        looks_ahead: Whether steps are to know the batches that follow.
        group: How many batches Keras wants at once.
    """

    strategy: Strategy
    share_of: Callable[[Deal, Any], Any]
    looks_ahead: bool
    group: int

    @property
    def num_batches(self) -> int | None:
        """The number of this worker's batches, if that of all batches is known."""
        whole: int | None = super().num_batches
        workers = self.strategy.workers
        if whole is None or not self.strategy.feed.takes_turns:
            return whole
        return len(range(workers.index, whole, workers.count))

    def _enumerate_iterator(self) -> Iterator[tuple[int, int, Iterator[Any]]]:
        begin, progress = 0, _Progress()
        own = self._own(progress)
        lookahead = self.strategy.engine.replicas.lookahead if self.looks_ahead else None
        if lookahead is not None:
            own = look_ahead(own, lookahead)
        for first in own:
            group = itertools.chain([first], itertools.islice(own, self.group - 1))
            yield begin, begin + self.group - 1, group
            begin += self.group
        if progress.num_drawn and begin == 0:
            yield begin, begin + self.group - 1, iter([NO_BATCH])
        if progress.has_ended_early:
            with self.catch_stop_iteration():
                raise StopIteration

    def _own(self, progress: "_Progress") -> Iterator[Any]:
        """Yield this worker's shares, one after the other."""
        deal = self.strategy.feed.deal()
        for _, _, batches in super()._enumerate_iterator():
            batch = next(batches, _END)
            if batch is _END:
                progress.has_ended_early = True
                return
            progress.num_drawn += 1
            share = self.share_of(deal, batch)
            if share is not None:
                yield share


@dataclass
class _Progress:
    """The progress of an epoch through the batches of all workers.

    Attributes:
        num_drawn: How many batches have been drawn.
        has_ended_early: Whether they ended before Keras expected it.
    """

    num_drawn: int = 0
    has_ended_early: bool = False


def with_dense_arrays(batch: Any) -> Any:
    """Return a batch whose rows can be told apart: the arrays inside a sparse array have other rows than it has."""
    if not any(map(_is_sparse, jax.tree.leaves(batch, is_leaf=_is_sparse))):
        return batch  # the same object, by which steps recognise it
    return jax.tree.map(lambda leaf: leaf.todense() if _is_sparse(leaf) else leaf, batch, is_leaf=_is_sparse)


def _is_sparse(leaf: Any) -> bool:
    return isinstance(leaf, JAXSparse)
