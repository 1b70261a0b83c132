"""Typed random keys in a list of arrays, which travel as the integers that they are made of.

Not everything that carries arrays between processes, or into files, knows keys.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.waist.interfaces import Arrays


class Keys:
    """Where in a list the keys are.

    Args:
        leaves: Such a list.
    """

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._implementations = {
            number: str(jax.random.key_impl(leaf))
            for number, leaf in enumerate(leaves)
            if jnp.issubdtype(getattr(leaf, "dtype", np.uint32), jax.dtypes.prng_key)
        }

    def __contains__(self, number: object) -> bool:
        return number in self._implementations

    def __iter__(self) -> Iterator[int]:
        return iter(self._implementations)

    def __len__(self) -> int:
        return len(self._implementations)

    def key(self, number: int, integers: Any) -> jax.Array:
        """The key, or the array of keys, at one place."""
        key: jax.Array = jax.random.wrap_key_data(integers, impl=self._implementations[number])
        return key

    def as_integers(self, leaves: Sequence[Any]) -> Arrays:
        """The list without keys."""
        return [jax.random.key_data(leaf) if number in self else leaf for number, leaf in enumerate(leaves)]

    def as_keys(self, leaves: Sequence[Any]) -> Arrays:
        """The list with keys again."""
        return [self.key(number, leaf) if number in self else leaf for number, leaf in enumerate(leaves)]
