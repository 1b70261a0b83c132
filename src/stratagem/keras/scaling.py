"""Loss scaling where the optimizer is elsewhere: scale and check on the worker, update on the servers.

Keras's `LossScaleOptimizer` does both in one. Here its scale is the worker's own: a gradient that is not finite counts
as zero, and lowers the scale of the worker that had it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import keras

from stratagem.keras.trainable import KerasTrainable
from stratagem.waist import Arrays, Kind, Metrics, Trainable


def is_scaling(optimizer: Any) -> bool:
    """Whether an optimizer scales the loss."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def unscaled(trainable: KerasTrainable, optimizer: Any) -> tuple[Trainable, Any]:
    """A trainable of gradients that are not scaled, and the optimizer for these."""
    if not is_scaling(optimizer):
        return trainable, optimizer
    return _Unscaled(trainable, optimizer), optimizer.inner_optimizer


class _Unscaled(Trainable):
    """A trainable that scales its loss, and its gradients back.

    Its state ends with the variables that a `LossScaleOptimizer` has beside those of the optimizer in it; the last
    are a counter and the scale.
    """

    def __init__(self, trainable: KerasTrainable, optimizer: Any) -> None:
        self._trainable = trainable
        self._optimizer = optimizer
        self._inner = optimizer.inner_optimizer.variables
        self._count = len(optimizer.variables) - len(self._inner)
        self.reads_optimizer = False
        self.names = trainable.names
        own: list[Kind] = ["own"] * self._count
        self.kinds = [*trainable.kinds, *own]

    def init(self) -> tuple[Arrays, Arrays]:
        params, state = self._trainable.init()
        return params, [*state, *(variable.value for variable in self._optimizer.variables[: self._count])]

    def loss_and_grad(
        self, params: Arrays, state: Arrays, batch: Any, rng: jax.Array
    ) -> tuple[tuple[jax.Array, Arrays, Metrics], Arrays]:
        *others, counter, scale = state[-self._count :]
        seen = [*state, *(jnp.zeros(variable.shape, variable.dtype) for variable in self._inner)]
        (loss, after, metrics), grads = self._trainable.loss_and_grad(params, seen, batch, rng)
        is_finite = jnp.all(jnp.asarray([jnp.all(jnp.isfinite(grad)) for grad in grads]))
        grads = [jnp.where(is_finite, grad / scale.astype(grad.dtype), 0) for grad in grads]
        grows = counter + 1 >= self._optimizer.dynamic_growth_steps
        scale_after = jnp.where(is_finite, jnp.where(grows, scale * 2, scale), scale / 2)
        counter_after = jnp.where(is_finite & ~grows, counter + 1, 0).astype(counter.dtype)
        return (loss, [*after, *others, counter_after, scale_after], metrics), grads

    def report(self, state: Arrays) -> Metrics:
        return self._trainable.report(state[: -self._count])

    def evaluate(self, params: Arrays, state: Arrays, batch: Any) -> Metrics:
        return self._trainable.evaluate(params, state[: -self._count], batch)

    def predict(self, params: Arrays, state: Arrays, batch: Any) -> Any:
        return self._trainable.predict(params, state[: -self._count], batch)

    def commit(self, params: Arrays, state: Arrays) -> None:
        """Nothing to do: Keras takes the values itself."""
