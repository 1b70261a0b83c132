"""Keras initializers as those of a table's rows: each draws the values of one row by itself."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from stratagem.errors import StrategyError
from stratagem.tables.table import Initializer

Draw = Callable[[jax.Array, Sequence[int], Any, float, float], Any]


def _uniform(key: jax.Array, shape: Sequence[int], dtype: Any, least: float, greatest: float) -> Any:
    return jax.random.uniform(key, shape, dtype, least, greatest)


def _normal(key: jax.Array, shape: Sequence[int], dtype: Any, mean: float, deviation: float) -> Any:
    return mean + deviation * jax.random.normal(key, shape, dtype)


def _truncated(key: jax.Array, shape: Sequence[int], dtype: Any, mean: float, deviation: float) -> Any:
    return mean + deviation * jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)


def _constant(key: jax.Array, shape: Sequence[int], dtype: Any, value: float, _: float) -> Any:
    return jnp.full(shape, value, dtype)


_KNOWN: dict[type, tuple[Draw, Callable[[Any], tuple[float, float]]]] = {
    keras.initializers.RandomUniform: (_uniform, lambda each: (each.minval, each.maxval)),
    keras.initializers.RandomNormal: (_normal, lambda each: (each.mean, each.stddev)),
    keras.initializers.TruncatedNormal: (_truncated, lambda each: (each.mean, each.stddev)),
    keras.initializers.Zeros: (_constant, lambda _: (0.0, 0.0)),
    keras.initializers.Ones: (_constant, lambda _: (1.0, 0.0)),
    keras.initializers.Constant: (_constant, lambda each: (each.value, 0.0)),
}


def row_initializer(layer: str, initializer: Any) -> tuple[Initializer, int]:
    """An initializer of rows that draws as one of Keras's does, and its seed.

    Args:
        layer: Whose it is, for messages.
        initializer: The initializer.

    Raises:
        StrategyError: It is one that needs to know the whole matrix.
    """
    draw, numbers = _KNOWN.get(type(initializer), (None, None))
    if draw is None or numbers is None or np.ndim(numbers(initializer)[0]):
        known = ", ".join(each.__name__ for each in _KNOWN)
        raise StrategyError(
            f"embedding {layer!r} has embeddings_initializer={initializer!r:.80}, which cannot be drawn row by row: give one "
            f"of {known} (Constant: of one number)"
        )
    # One drawn at random would be another on every worker.
    seed = getattr(initializer, "_init_seed", None)
    return _row_initializer(draw, *numbers(initializer)), seed if isinstance(seed, int) else 0


@lru_cache
def _row_initializer(draw: Draw, *numbers: float) -> Initializer:
    """The same one for the same numbers: tables that are alike are kept together."""

    def initializer(key: jax.Array, shape: Sequence[int], dtype: Any) -> Any:
        first, second = numbers
        return jnp.asarray(draw(key, shape, dtype, first, second), dtype)

    return initializer
