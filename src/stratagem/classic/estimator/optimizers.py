"""Optimizers by the names that TensorFlow's canned estimators take, among them FTRL, which optax does not have."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import optax

from stratagem.errors import StrategyError

_FIRST_SUM: Final = 0.1
"""What the sums of squared gradients begin with, in Adagrad and FTRL, as in TensorFlow."""


class FtrlState(NamedTuple):
    """The state of FTRL: for each parameter two arrays of its shape.

    Attributes:
        squares: Sums of the squared gradients.
        linear: Sums of the gradients, less what they would have moved the parameters.
    """

    squares: Any
    linear: Any


def ftrl(learning_rate: float) -> optax.GradientTransformation:
    """Follow the regularized leader, McMahan's proximal form, without regularisation.

    TensorFlow's formula, with the learning rate falling as one over the root of the summed squares.
    """

    def init(params: Any) -> FtrlState:
        return FtrlState(
            squares=jax.tree.map(lambda param: jnp.full_like(param, _FIRST_SUM), params),
            linear=jax.tree.map(jnp.zeros_like, params),
        )

    def update(grads: Any, state: FtrlState, params: Any = None) -> tuple[Any, FtrlState]:
        squares = jax.tree.map(lambda total, grad: total + grad**2, state.squares, grads)

        def moved(linear: Any, grad: Any, before: Any, after: Any, param: Any) -> Any:
            return linear + grad - (jnp.sqrt(after) - jnp.sqrt(before)) / learning_rate * param

        linear = jax.tree.map(moved, state.linear, grads, state.squares, squares, params)
        updates = jax.tree.map(
            lambda total, squared, param: -total * learning_rate / jnp.sqrt(squared) - param,
            linear,
            squares,
            params,
        )
        return updates, FtrlState(squares, linear)

    return optax.GradientTransformation(init, update)


_BY_NAME: Final[Mapping[str, Callable[[float], optax.GradientTransformation]]] = {
    "Adagrad": lambda rate: optax.adagrad(rate, initial_accumulator_value=_FIRST_SUM),
    "Adam": optax.adam,
    "Ftrl": ftrl,
    "RMSProp": optax.rmsprop,
    "SGD": optax.sgd,
}


def chosen_optimizer(given: Any, default: optax.GradientTransformation, learning_rate: float) -> Any:
    """The optimizer of a canned estimator.

    Args:
        given: An optax optimizer, a name of TensorFlow's in any case of letters, or `None`.
        default: What `None` means.
        learning_rate: For one that is given by name.

    Raises:
        StrategyError: There is none of that name.
    """
    if given is None:
        return default
    if not isinstance(given, str):
        return given
    for name, made in _BY_NAME.items():
        if name.lower() == given.lower():
            return made(learning_rate)
    raise StrategyError(
        f"optimizer is {given!r}; give one of {', '.join(_BY_NAME)}, or an optax optimizer, such as optax.adam(1e-3)"
    )
