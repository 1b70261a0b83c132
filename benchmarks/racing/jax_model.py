"""The model as a JAX function, for hand-written loops and for strategies; and a step by hand."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax


def scores(params: Any, pictures: Any) -> jax.Array:
    """Return the scores of each class, by a dense network with ReLU."""
    *hidden, (matrix, vector) = params
    values = pictures
    for weights, bias in hidden:
        values = jax.nn.relu(values @ weights + bias)
    result: jax.Array = values @ matrix + vector
    return result


def loss_fn(params: Any, batch: Any) -> jax.Array:
    """Return the mean softmax cross-entropy."""
    pictures, labels = batch
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores(params, pictures), labels))


def step_by_hand(optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    """Return the step that a user without a strategy would write: jitted, and donating its state."""

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, opt_state: Any, batch: Any) -> tuple[Any, Any, jax.Array]:
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return step
