"""A Keras optimizer as that of a table: its own update, of as many rows as there are to be updated."""

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from stratagem.errors import StrategyError

_TRIED = 8, 9
"""With so many rows it is built to see which of its variables have one entry for each."""


class RowOptimizer:
    """An optimizer like one of Keras's, as optax has them, for matrices of any number of rows.

    Args:
        optimizer: The optimizer.
        dim: How many numbers a row has.
        dtype: Their type.

    Attributes:
        rate: Which of the variables that all rows share is the learning rate; `None` if a schedule tells it.

    Raises:
        StrategyError: It keeps something that rows cannot have each by itself.
    """

    def __init__(self, optimizer: Any, dim: int, dtype: str) -> None:
        self._kind = type(optimizer)
        self._config = optimizer.get_config()
        self._dim = dim
        self._dtype = dtype
        self._built: dict[int, Any] = {}
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise self._refused("it scales the loss")
        for name in ("use_ema", "gradient_accumulation_steps"):
            if getattr(optimizer, name, None):
                raise self._refused(f"it has {name}={getattr(optimizer, name)!r}")
        few, more = (self._for(count).variables for count in _TRIED)
        self._variables: list[tuple[bool, Any]] = []
        self.rate: int | None = None
        shared = 0
        for one, other in zip(few, more, strict=True):
            values = np.asarray(one.value)
            has_rows = one.shape != other.shape
            if has_rows and (one.shape[1:] != other.shape[1:] or (values != values.flat[0]).any()):
                raise self._refused(f"{one.name} does not begin alike for all rows")
            if not has_rows:
                if one is getattr(self._for(_TRIED[0]), "_learning_rate", None):
                    self.rate = shared
                shared += 1
            self._variables.append((has_rows, values))

    def _refused(self, reason: str) -> StrategyError:
        return StrategyError(
            f"{self._kind.__name__} cannot update rows of an embedding one by one ({reason}): give the layer an optimizer of "
            "its own, such as sg.keras.Embedding(..., optimizer=keras.optimizers.Adagrad(0.1))"
        )

    def _for(self, rows: int) -> Any:
        """One that was built for so many rows."""
        if rows not in self._built:
            with jax.ensure_compile_time_eval():
                optimizer = self._kind.from_config(self._config)
                optimizer.build(
                    [keras.Variable(np.zeros((rows, self._dim), self._dtype), name="rows", dtype=self._dtype)]
                )
            self._built[rows] = optimizer
        return self._built[rows]

    def init(self, values: Any) -> list[Any]:
        """The optimizer's variables for these rows; traceable."""
        return [
            jnp.full((len(values), *first.shape[1:]), first.flat[0], first.dtype)
            if has_rows
            else jnp.asarray(first)
            for has_rows, first in self._variables
        ]

    def update(self, gradients: Any, state: list[Any], values: Any) -> tuple[Any, list[Any]]:
        """What is to be added to rows, and the optimizer's variables after that; traceable."""
        new, after = self._for(len(values)).stateless_apply(state, [gradients], [values])
        return new[0] - values, list(after)
