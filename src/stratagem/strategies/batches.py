"""Batches put on the devices one step ahead of the training that uses them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from stratagem.strategies.replicas import Replicas


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
    """The batches, each put on the devices while the one before it trains."""
    ahead: list[Any] = []
    for batch in batches:
        ahead.append(replicas.place(batch) if jax.tree.leaves(batch) else batch)
        if len(ahead) > 1:
            yield ahead.pop(0)
    yield from ahead
