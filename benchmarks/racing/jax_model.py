"""The model as a JAX function, for the loops written by hand and for the strategies alike; and a step by hand."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax


def scores(params: Any, pictures: Any) -> jax.Array:
    """What a dense network with ReLU gives each class."""
    *hidden, (matrix, vector) = params
    values = pictures
    for weights, bias in hidden:
        values = jax.nn.relu(values @ weights + bias)
    result: jax.Array = values @ matrix + vector
    return result


def loss_fn(params: Any, batch: Any) -> jax.Array:
    """Mean softmax cross-entropy."""
    pictures, labels = batch
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores(params, pictures), labels))


def step_by_hand(optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    """What a user without any strategy would write: a jitted step that donates its state."""

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, opt_state: Any, batch: Any) -> tuple[Any, Any, jax.Array]:
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return step
