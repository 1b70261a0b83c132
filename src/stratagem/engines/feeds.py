"""How batches reach the workers of a strategy: who gets what of them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeAlias

import numpy as np

from stratagem.engines.batches import HOW_TO_SHARE, Batches, digest, placed_ahead, with_rows
from stratagem.engines.replicas import Replicas
from stratagem.engines.rows import count_rows, share_of, take_rows
from stratagem.engines.workers import Workers
from stratagem.errors import DataError

Deal: TypeAlias = Callable[[Any], Any]
"""Given the global batches of a pass, one after the other, tells this worker's part of each: `None` if it is another's,
no rows if there are too few."""


class Feed(Protocol):
    """Deals batches out among workers."""

    @property
    def shares_evaluation(self) -> bool:
        """Whether workers also share out what is only evaluated, and so have to bring their results together."""
        ...

    @property
    def takes_turns(self) -> bool:
        """Whether each batch goes to one worker whole."""
        ...

    def deal(self) -> Deal:
        """Begin a pass over global batches."""
        ...

    def rest(self) -> None:
        """This worker has no batches for now: nobody is to wait for it."""
        ...

    def share(self, batches: Iterable[Any]) -> Batches:
        """This worker's part of global batches, on its devices."""
        ...

    def own(self, batches: Iterable[Any]) -> Batches:
        """Batches that are this worker's alone, on its devices."""
        ...


class InStepFeed:
    """For workers that all take part in every update.

    Args:
        replicas: The devices of this worker.
        workers: The workers.
    """

    takes_turns = False

    def __init__(self, replicas: Replicas, workers: Workers) -> None:
        self._replicas = replicas
        self._workers = workers

    def share(self, batches: Iterable[Any]) -> Batches:
        """This worker's share of each global batch."""
        return Batches(lambda: placed_ahead(self._shared_out(batches), self._replicas))

    def own(self, batches: Iterable[Any]) -> Batches:
        """All of them, then empty ones until all workers have come to the end of theirs."""
        return Batches(lambda: placed_ahead(self._until_all_have_ended(batches), self._replicas))

    def rest(self) -> None:
        """Nothing to say: the others have none either."""

    @property
    def shares_evaluation(self) -> bool:
        """Whether there is anybody to share with."""
        return self._workers.count > 1

    def deal(self) -> Deal:
        """This worker's share of each batch; it may be empty where there are more workers than rows."""
        index, count = self._workers.index, self._workers.count
        is_first = True

        def share(batch: Any) -> Any:
            nonlocal is_first
            if is_first and count > 1:
                self._check_same(batch)
            is_first = False
            return batch if count == 1 else take_rows(batch, share_of(count_rows(batch), index, count))

        return share

    def _shared_out(self, batches: Iterable[Any]) -> Iterator[Any]:
        return map(self.deal(), with_rows(batches))

    def _until_all_have_ended(self, batches: Iterable[Any]) -> Iterator[Any]:
        """This worker's own batches, then empty ones for as long as others still have some.

        All take part in every update: a worker that simply stopped would keep the others waiting.
        """
        own = with_rows(batches)
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
