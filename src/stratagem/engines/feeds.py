"""How batches reach the workers of a strategy: who gets which rows, and when they are put on devices."""

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import jax
import numpy as np

from stratagem.engines.replicas import Lookahead, Replicas
from stratagem.engines.rows import count_rows, share_of, take_rows
from stratagem.engines.workers import Workers
from stratagem.errors import DataError

HOW_TO_SHARE = (
    "distribute() shares out global batches, so every worker must pass the same ones in the same order (seed the "
    "shuffling, or give each worker its own with distribute_from_function)"
)
Deal: TypeAlias = Callable[[Any], Any]
"""Takes the global batches of a pass, one after the other, and returns this worker's share of each: `None` if the batch is
another worker's, no rows if there are too few."""


class Batches:
    """Batches that can be iterated as often as what they are made of."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin()


class Feed(ABC):
    """Deals batches out among workers.

    Attributes:
        takes_turns: Whether each batch goes to one worker whole.
    """

    takes_turns: bool

    @property
    @abstractmethod
    def shares_evaluation(self) -> bool:
        """Whether workers also share out batches that are only evaluated, and so have to bring their results together."""

    @abstractmethod
    def deal(self) -> Deal:
        """Begin a pass over global batches."""

    @abstractmethod
    def rest(self) -> None:
        """Tell the other workers not to wait for this one, which has no batches for now."""

    @abstractmethod
    def share(self, batches: Iterable[Any]) -> Batches:
        """Return this worker's share of global batches, on its devices."""

    @abstractmethod
    def own(self, batches: Iterable[Any]) -> Batches:
        """Return batches that are this worker's alone, on its devices."""


class InStepFeed(Feed):
    """For workers that all take part in every update."""

    takes_turns = False

    def __init__(self, replicas: Replicas, workers: Workers) -> None:
        self._replicas = replicas
        self._workers = workers

    @property
    def shares_evaluation(self) -> bool:
        return self._workers.count > 1

    def share(self, batches: Iterable[Any]) -> Batches:
        return Batches(lambda: place_ahead(map(self.deal(), nonempty(batches)), self._replicas))

    def own(self, batches: Iterable[Any]) -> Batches:
        """Return this worker's batches, then empty ones until all workers have come to the end of theirs."""
        return Batches(lambda: place_ahead(self._until_all_have_ended(batches), self._replicas))

    def rest(self) -> None:
        """Do nothing: the other workers have no batches either."""

    def deal(self) -> Deal:
        """Begin a pass; a worker's share is empty where there are more workers than rows."""
        index, count = self._workers.index, self._workers.count
        is_first = True

        def share(batch: Any) -> Any:
            nonlocal is_first
            if is_first and count > 1:
                self._check_same(batch)
            is_first = False
            return batch if count == 1 else take_rows(batch, share_of(count_rows(batch), index, count))

        return share

    def _until_all_have_ended(self, batches: Iterable[Any]) -> Iterator[Any]:
        # All take part in every update: a worker that simply stopped would keep the others waiting.
        own = nonempty(batches)
        empty: Any = None
        while True:
            batch = next(own, None)
            has_batch = batch is not None
            if self._workers.count > 1:
                if not any(bool(each) for each in self._workers.gather(np.asarray(has_batch))):
                    return
            elif not has_batch:
                return
            if has_batch:
                empty = take_rows(batch, slice(0, 0))
            yield batch if has_batch else empty

    def _check_same(self, batch: Any) -> None:
        """Raise unless all workers were given the same first batch."""
        digests = [each.tobytes() for each in self._workers.gather(np.frombuffer(digest(batch), np.uint8))]
        others = [str(worker) for worker, each in enumerate(digests) if each != digests[0]]
        if others:
            raise DataError(
                f"the first batch of worker {', '.join(others)} is not that of worker 0: {HOW_TO_SHARE}"
            )


# What feeds do with batches.


def place_ahead(batches: Iterable[Any], replicas: Replicas) -> Iterator[Any]:
    """Put each batch on the devices while the one before it trains; leave it on the host if steps read host memory."""
    if replicas.lookahead is not None:
        yield from look_ahead(batches, replicas.lookahead)
        return
    if replicas.read_host_memory:
        # None is drawn ahead: whoever makes them may use the memory of one for the next.
        yield from batches
        return
    ahead: list[Any] = []
    for batch in batches:
        ahead.append(replicas.place(batch) if jax.tree.leaves(batch) else batch)
        if len(ahead) > 1:
            yield ahead.pop(0)
    yield from ahead


def look_ahead(batches: Iterable[Any], lookahead: Lookahead) -> Iterator[Any]:
    """Copy batches, and yield each once the later one is known that its step wants to know of."""
    copies = (jax.tree.map(np.array, batch) for batch in batches)
    ahead: deque[Any] = deque()
    for following in itertools.chain(copies, itertools.repeat(None, lookahead.distance)):
        ahead.append(following)
        if len(ahead) > lookahead.distance:
            lookahead.set(ahead[0], following)
            yield ahead.popleft()


def nonempty(batches: Iterable[Any]) -> Iterator[Any]:
    """Skip batches without a row, over which a mean is no number."""
    return (batch for batch in batches if count_rows(batch) > 0)


def digest(batch: Any) -> bytes:
    """Return a digest of a batch, which tells it from others."""
    result = hashlib.sha256()
    for leaf in jax.tree.leaves(batch):
        array = np.asarray(leaf)
        result.update(f"{array.dtype}{array.shape}".encode())
        # Arrays of strings hold addresses, which differ from process to process.
        content = (
            repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes()
        )
        result.update(content)
    return result.digest()
