"""Exponential moving averages of parameters, with TensorFlow's formula."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from stratagem.errors import StrategyError


@dataclass(frozen=True)
class ExponentialMovingAverage:
    """Shadows of parameters that follow them slowly: shadow ← decay · shadow + (1 − decay) · parameter.

    With `num_updates` n the decay starts small: min(decay, (1 + n) / (10 + n)).

    Example:
        >>> ema = ExponentialMovingAverage(0.99)
        >>> shadow = ema.init({"w": jnp.zeros(2)})
        >>> shadow = ema.update(shadow, {"w": jnp.ones(2)}, num_updates=0)
        >>> shadow["w"]
        Array([0.9, 0.9], dtype=float32)
    """

    decay: float

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise StrategyError(f"the decay of a moving average is between 0 and 1, not {self.decay!r}")

    def init(self, params: Any) -> Any:
        """The shadows start at the parameters."""
        return jax.tree.map(jnp.array, params)

    def update(self, shadow: Any, params: Any, num_updates: Any = None) -> Any:
        """The shadows after an update of the parameters."""
        decay: Any = self.decay
        if num_updates is not None:
            updates = jnp.asarray(num_updates, jnp.float32)
            decay = jnp.minimum(self.decay, (1 + updates) / (10 + updates))
        return jax.tree.map(
            lambda old, new: (old - (1 - decay) * (old - new)).astype(old.dtype), shadow, params
        )
