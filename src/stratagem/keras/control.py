"""A word of the chief's to all workers, which lives on the servers beside the variables and comes with every pull."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.keras.random_state import peek
from stratagem.waist import Arrays, Kind, Metrics, Trainable


@dataclass(frozen=True)
class Control:
    """What the chief says: a seed for the order of batches, and which `fit` it has stopped."""

    values: Any

    @classmethod
    def new(cls) -> "Control":
        """That of a new job; only the chief's counts."""
        return cls(np.asarray([peek(2**24), 0], np.float32))

    def order_of(self, fit: int) -> int:
        """The seed of the order of batches in a `fit`, the first being 1."""
        return (int(self.values[0]) + 7919 * fit) % 2**32

    def stopping(self, fit: int) -> Any:
        """The same, with the word that this `fit` is to stop."""
        return np.asarray([self.values[0], fit], np.float32)

    def has_stopped(self, fit: int) -> bool:
        """Whether this `fit` is to stop."""
        return bool(self.values[1] == fit)


class Controlled(Trainable):
    """A trainable whose state ends with the chief's word, unchanged by training.

    Args:
        trainable: The trainable.
        control: The word to begin with.
    """

    def __init__(self, trainable: Trainable, control: Control) -> None:
        self._trainable = trainable
        self._control = control
        self.reads_optimizer = False
        self.names = trainable.names
        self.kinds: list[Kind] = [*(trainable.kinds or ()), "mean"]

    def init(self) -> tuple[Arrays, Arrays]:
        params, state = self._trainable.init()
        return params, [*state, jnp.asarray(self._control.values)]

    def loss_and_grad(
        self, params: Arrays, state: Arrays, batch: Any, rng: jax.Array
    ) -> tuple[tuple[jax.Array, Arrays, Metrics], Arrays]:
        (loss, after, metrics), grads = self._trainable.loss_and_grad(params, state[:-1], batch, rng)
        return (loss, [*after, state[-1]], metrics), grads

    def report(self, state: Arrays) -> Metrics:
        return self._trainable.report(state[:-1])

    def evaluate(self, params: Arrays, state: Arrays, batch: Any) -> Metrics:
        return self._trainable.evaluate(params, state[:-1], batch)

    def predict(self, params: Arrays, state: Arrays, batch: Any) -> Any:
        return self._trainable.predict(params, state[:-1], batch)

    def commit(self, params: Arrays, state: Arrays) -> None:
        """Nothing to do: Keras takes the values itself."""
