"""Checks what functions of the user's take and return.

What they return is checked while JAX traces them: a compiled step pays nothing for it.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.errors import StrategyError
from stratagem.waist.interfaces import Metrics

# Arguments.


def check_callable(name: str, value: object, form: str) -> None:
    """Refuse a value that cannot be called.

    Args:
        name: The name that the user knows the value by.
        value: The value.
        form: The form of the function to give, for the message.

    Raises:
        StrategyError: It cannot be called.
    """
    if not callable(value):
        raise StrategyError(f"{name} is {value!r:.80}; give a function {form}")


def check_takes(
    name: str, function: Callable[..., Any], form: str, arguments: int, by_name: str = ""
) -> bool:
    """Refuse a function that cannot be called with a number of arguments, and with one by name if it has that one.

    Args:
        name: The name that the user knows the function by.
        function: The function.
        form: The form of the function to give, for the message.
        arguments: The number of arguments that are passed by position.
        by_name: The argument that is passed by name, if the function has it.

    Returns:
        Whether the function has that argument.

    Raises:
        StrategyError: It takes other arguments.
    """
    check_callable(name, function, form)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in callables have no signature
        return False
    named = {by_name} & set(signature.parameters)
    try:
        signature.bind(*[None] * arguments, **dict.fromkeys(named))
    except TypeError as error:
        raise StrategyError(f"{name} is a function of {signature}; give a function {form}") from error
    return bool(named)


def asks_for_rng(loss_fn: Callable[..., Any], first: str) -> bool:
    """Return whether a loss function takes a random key for each step.

    Args:
        loss_fn: The loss function.
        first: The name of its first argument, for the message.

    Raises:
        StrategyError: It takes other arguments.
    """
    form = f"loss_fn({first}, batch), or loss_fn({first}, batch, rng) to be given a random key of each step"
    return check_takes("loss_fn", loss_fn, form, 2, by_name="rng")


# Results.


def checked_loss(result: Any, name: str = "the loss function") -> tuple[Any, Metrics]:
    """Return the loss and the metrics that a loss function returned; traceable.

    Args:
        result: What the function returned.
        name: The name that the user knows the function by.

    Raises:
        StrategyError: It is neither a loss, nor a loss and a dictionary of metrics.
    """
    is_pair = isinstance(result, tuple) and len(result) == 2
    loss, metrics = result if is_pair else (result, {})
    if not _is_number(loss, jnp.floating) or not isinstance(metrics, Mapping):
        raise StrategyError(
            f"{name} returned {describe(result)}; give the mean loss over the rows, one floating-point number such as "
            "jnp.mean(losses), or that and a dictionary of metrics: (loss, {'accuracy': accuracy})"
        )
    for metric, value in metrics.items():
        if not isinstance(metric, str) or not _is_number(value, jnp.floating, jnp.integer, jnp.bool_):
            raise StrategyError(
                f"{name} returned the metric {metric!r}: {describe(value)}; give each metric a text as its name, and one "
                "number, the mean over the rows: {'accuracy': jnp.mean(hits)}"
            )
    return loss, dict(metrics)


def describe(value: object) -> str:
    """Return a value's type, shape and dtype in words, without its content: `(an array float32[16], a dict)`."""
    if value is None:
        return "None"
    if type(value) is tuple:
        return f"({', '.join(map(describe, value))})"
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return f"an array {value.dtype}{list(value.shape)}"
    return describe_type(value)


def describe_type(value: object) -> str:
    """Return a value's type in words: `a list`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _is_number(value: Any, *kinds: Any) -> bool:
    """Return whether a value is one number, of one of these kinds."""
    if isinstance(value, bool | int | float):
        return any(jnp.issubdtype(jnp.result_type(value), kind) for kind in kinds)
    is_array = isinstance(value, jax.Array | np.ndarray | np.generic) or hasattr(value, "__jax_array__")
    return is_array and not value.shape and any(jnp.issubdtype(value.dtype, kind) for kind in kinds)
