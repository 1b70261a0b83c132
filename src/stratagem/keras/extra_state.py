"""State that a Keras model on parameter servers has beside its own: the scale of its loss, and what the chief controls."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from stratagem.keras.gathering import peek_random
from stratagem.keras.trainable import KerasTrainable
from stratagem.waist import Arrays, Kind, Metrics, Trainable


class _ExtraState(Trainable):
    """A trainable whose state ends with arrays that the model does not know.

    Args:
        trainable: The trainable without them.
        kinds: The kind of each of these arrays.
    """

    def __init__(self, trainable: Trainable, kinds: Sequence[Kind]) -> None:
        self._trainable = trainable
        self._count = len(kinds)
        self.reads_optimizer = False
        self.names = trainable.names
        self.kinds = [*(trainable.kinds or ()), *kinds]

    @abstractmethod
    def _initial(self) -> Arrays:
        """Return the arrays to begin with."""

    def init(self) -> tuple[Arrays, Arrays]:
        params, state = self._trainable.init()
        return params, [*state, *self._initial()]

    def report(self, state: Arrays) -> Metrics:
        return self._trainable.report(state[: -self._count])

    def evaluate(self, params: Arrays, state: Arrays, batch: Any) -> Metrics:
        return self._trainable.evaluate(params, state[: -self._count], batch)

    def predict(self, params: Arrays, state: Arrays, batch: Any) -> Any:
        return self._trainable.predict(params, state[: -self._count], batch)

    def commit(self, params: Arrays, state: Arrays) -> None:
        """Do nothing: the value home writes values into Keras's variables."""


# Loss scaling. Keras's `LossScaleOptimizer` scales the loss, checks the gradients and updates, all in one. With the
# optimizer on the servers, workers scale and check. The scale is each worker's own: a gradient that is not finite counts as
# zero, and lowers the scale of the worker that had it.


def has_loss_scale(optimizer: Any) -> bool:
    """Return whether an optimizer scales the loss."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def with_unscaled_gradients(trainable: KerasTrainable, optimizer: Any) -> tuple[Trainable, Any]:
    """Return a trainable whose gradients are not scaled, and the optimizer for these."""
    if not has_loss_scale(optimizer):
        return trainable, optimizer
    return _LossScale(trainable, optimizer), optimizer.inner_optimizer


class _LossScale(_ExtraState):
    """A trainable that scales its loss, and its gradients back.

    Its state ends with the variables that a `LossScaleOptimizer` has beside those of its inner optimizer; the last two are
    a counter and the scale.
    """

    def __init__(self, trainable: KerasTrainable, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._inner = optimizer.inner_optimizer.variables
        super().__init__(trainable, ["own"] * (len(optimizer.variables) - len(self._inner)))

    def _initial(self) -> Arrays:
        return [variable.value for variable in self._optimizer.variables[: self._count]]

    def loss_and_grad(
        self, params: Arrays, state: Arrays, batch: Any, rng: jax.Array
    ) -> tuple[tuple[jax.Array, Arrays, Metrics], Arrays]:
        *others, counter, scale = state[-self._count :]
        # Keras reads the scale only, but wants all of the optimizer's variables.
        all_state = [*state, *(jnp.zeros(variable.shape, variable.dtype) for variable in self._inner)]
        (loss, after, metrics), grads = self._trainable.loss_and_grad(params, all_state, batch, rng)
        is_finite = jnp.all(jnp.asarray([jnp.all(jnp.isfinite(grad)) for grad in grads]))
        grads = [jnp.where(is_finite, grad / scale.astype(grad.dtype), 0) for grad in grads]
        grows = counter + 1 >= self._optimizer.dynamic_growth_steps
        scale_after = jnp.where(is_finite, jnp.where(grows, scale * 2, scale), scale / 2)
        counter_after = jnp.where(is_finite & ~grows, counter + 1, 0).astype(counter.dtype)
        return (loss, [*after, *others, counter_after, scale_after], metrics), grads


# Control by the chief. Workers that take turns do not wait for each other, so the chief cannot send them messages at a
# moment that all agree on. Instead two of its numbers travel as one more variable of the model: the chief assigns it on the
# servers, and every pull brings it along for nothing.


@dataclass(frozen=True)
class ChiefControl:
    """The chief's two numbers for all workers: a seed for shuffling, and the `fit` that it has stopped.

    Attributes:
        values: Both, as the model's variable has them.
    """

    values: Any

    @classmethod
    def new(cls) -> "ChiefControl":
        """Return that of a new job; servers take the chief's."""
        return cls(np.asarray([peek_random(2**24), 0], np.float32))

    def shuffle_seed(self, fit: int) -> int:
        """Return the seed for the order of batches in a `fit`, the first being 1."""
        return (int(self.values[0]) + 7919 * fit) % 2**32

    def values_with_stop(self, fit: int) -> Any:
        """Return the values that also tell workers to stop this `fit`."""
        return np.asarray([self.values[0], fit], np.float32)

    def has_stopped(self, fit: int) -> bool:
        """Return whether the chief has stopped this `fit`."""
        return bool(self.values[1] == fit)


class WithChiefControl(_ExtraState):
    """A trainable whose state ends with the chief's control values, unchanged by training."""

    def __init__(self, trainable: Trainable, control: ChiefControl) -> None:
        super().__init__(trainable, ["mean"])
        self._control = control

    def _initial(self) -> Arrays:
        return [jnp.asarray(self._control.values)]

    def loss_and_grad(
        self, params: Arrays, state: Arrays, batch: Any, rng: jax.Array
    ) -> tuple[tuple[jax.Array, Arrays, Metrics], Arrays]:
        (loss, after, metrics), grads = self._trainable.loss_and_grad(params, state[:-1], batch, rng)
        return (loss, [*after, state[-1]], metrics), grads
