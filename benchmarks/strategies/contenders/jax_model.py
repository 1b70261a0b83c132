"""The model as a JAX function: for the loops written by hand and for the strategies alike."""

from typing import Any

import jax
import jax.numpy as jnp
import optax


def loss_fn(params: Any, batch: Any) -> jax.Array:
    """Mean softmax cross-entropy of a dense network with ReLU."""
    values, labels = batch
    *hidden, (matrix, vector) = params
    for weights, bias in hidden:
        values = jax.nn.relu(values @ weights + bias)
    scores = values @ matrix + vector
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, labels))
