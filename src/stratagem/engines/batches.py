"""What every way of dealing batches out does with them: skips empty ones, tells them apart, places them ahead."""

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from stratagem.engines.replicas import Lookahead, Replicas
from stratagem.engines.rows import count_rows

HOW_TO_SHARE = (
    "distribute() shares out global batches, so every worker must pass the same ones in the same order (seed the "
    "shuffling, or give each worker its own with distribute_from_function)"
)


class Batches:
    """Batches that may be iterated as often as what they are made of.

    Args:
        begin: Begins a new pass over them.
    """

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        """A new pass over them."""
        return self._begin()


def placed_ahead(batches: Iterable[Any], replicas: Replicas) -> Iterator[Any]:
    """The batches, each put on the devices while the one before it trains; in host memory if they read that."""
    if replicas.lookahead is not None:
        yield from told_ahead(batches, replicas.lookahead)
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


def told_ahead(batches: Iterable[Any], lookahead: Lookahead) -> Iterator[Any]:
    """Copies of the batches, each when the one is known that steps want to know then."""
    copies = (jax.tree.map(np.array, batch) for batch in batches)
    known: deque[Any] = deque()
    for following in itertools.chain(copies, itertools.repeat(None, lookahead.distance)):
        known.append(following)
        if len(known) > lookahead.distance:
            lookahead.tell(known[0], following)
            yield known.popleft()


def with_rows(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches but those without a row: the mean over no rows is no number."""
    return (batch for batch in batches if count_rows(batch) > 0)


def digest(batch: Any) -> bytes:
    """Tells batches apart."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(batch):
        array = np.asarray(leaf)
        found.update(f"{array.dtype}{array.shape}".encode())
        # Arrays of strings have addresses, which are others in every process.
        text = (
            repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes()
        )
        found.update(text)
    return found.digest()
