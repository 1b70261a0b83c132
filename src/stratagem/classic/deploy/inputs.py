"""What the model function of clones is called with: arrays, iterators that give each clone its own, and the rest."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from stratagem.errors import DataError, StratagemError

Taken: TypeAlias = tuple[list[Any], list[Any]]
"""The arrays of one call: those that are always the same, and what the iterators gave."""


class Inputs:
    """The arguments of a model function.

    An iterator among them is a queue: each call takes its next item. Arrays, in pytrees too, are handed over as
    values that JAX traces; anything else (numbers, texts, functions) as it is, a part of the program.

    Args:
        args: Positional arguments, after the scope.
        kwargs: Keyword arguments.
    """

    def __init__(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> None:
        self._keywords = list(kwargs or {})
        given = [*(args or ()), *(kwargs or {}).values()]
        self._queues = {place: value for place, value in enumerate(given) if isinstance(value, Iterator)}
        fixed = [None if place in self._queues else value for place, value in enumerate(given)]
        self._leaves, self._tree = jax.tree.flatten(fixed, is_leaf=lambda value: value is None)
        self._unopened = [place for place, value in enumerate(given) if _is_unopened(value)]
        self._arrays = [place for place, leaf in enumerate(self._leaves) if _is_array(leaf)]
        self._ahead: Taken | None = None
        self._count = 0

    def take(self) -> Taken:
        """The arrays of the next call.

        Raises:
            DataError: An iterator has no more.
        """
        if self._ahead is not None:
            taken, self._ahead = self._ahead, None
            return taken
        items = []
        for queue in self._queues.values():
            try:
                items.append(jax.tree.map(_as_array, next(queue)))
            except StopIteration:
                raise DataError(
                    f"the inputs ran out after {self._count} batch(es), one for each clone at each step: stop "
                    "before, or give an iterator that goes on"
                ) from None
        self._count += 1
        return [self._leaves[place] for place in self._arrays], items

    def peek(self) -> Taken:
        """What `take` will give next."""
        if self._ahead is None:
            self._ahead = self.take()
        return self._ahead

    def call(self, function: Callable[..., Any], scope: Any, taken: Taken) -> Any:
        """Call the model function with the scope, and with these arrays in their places; traceable."""
        arrays, items = taken
        leaves = list(self._leaves)
        for place, array in zip(self._arrays, arrays, strict=True):
            leaves[place] = array
        values = jax.tree.unflatten(self._tree, leaves)
        for place, item in zip(self._queues, items, strict=True):
            values[place] = item
        count = len(values) - len(self._keywords)
        named = dict(zip(self._keywords, values[count:], strict=True))
        try:
            return function(scope, *values[:count], **named)
        except (AttributeError, TypeError, ValueError) as error:
            if not self._unopened or isinstance(error, StratagemError):
                raise
            place = self._unopened[0]
            name = f"{place} in args" if place < count else repr(self._keywords[place - count])
            raise DataError(
                f"the model function raised {type(error).__name__}: {error}. It gets argument {name} whole, a "
                f"{type(values[place]).__name__}: if that has batches, of which each clone is to take the next, give "
                "iter(…) of it"
            ) from error


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic | jax.Array)


def _is_unopened(value: Any) -> bool:
    """Whether a value may be meant to be taken from, but is no iterator: a list of arrays, a dataset."""
    if isinstance(value, Iterator | Mapping | tuple | str | bytes) or _is_array(value):
        return False
    return isinstance(value, Iterable) and any(
        leaf is value or _is_array(leaf) for leaf in jax.tree.leaves(value)
    )


def _as_array(leaf: Any) -> Any:
    return leaf if _is_array(leaf) else np.asarray(leaf)
