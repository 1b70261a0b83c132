"""What functions of the user's may ask for, and the errors that say so."""

import inspect
from collections.abc import Callable
from typing import Any

from stratagem.errors import StrategyError


def check_callable(name: str, value: object, form: str) -> None:
    """Refuses what cannot be called.

    Args:
        name: What the user knows it as.
        value: What was given.
        form: What to give, after the words "give a function".

    Raises:
        StrategyError: It cannot.
    """
    if not callable(value):
        raise StrategyError(f"{name} is {value!r:.80}; give a function {form}")


def check_takes(
    name: str, function: Callable[..., Any], form: str, arguments: int, by_name: str = ""
) -> bool:
    """Refuses what cannot be called with so many arguments, and with one by its name if it asks for that.

    Args:
        name: What the user knows it as.
        function: The function.
        form: What to give, after the words "give a function".
        arguments: How many arguments it is given by place.
        by_name: The one that it is given by name, if it asks for it.

    Returns:
        Whether it asks for that one.

    Raises:
        StrategyError: It wants others.
    """
    check_callable(name, function, form)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in callables tell nothing
        return False
    named = {by_name} & set(signature.parameters)
    try:
        signature.bind(*[None] * arguments, **dict.fromkeys(named))
    except TypeError as error:
        raise StrategyError(f"{name} is a function of {signature}; give a function {form}") from error
    return bool(named)


def asks_for_rng(loss_fn: Callable[..., Any], first: str) -> bool:
    """Whether a loss function wants a random key for each step.

    Args:
        loss_fn: The loss function.
        first: What its first argument stands for.

    Raises:
        StrategyError: It wants something that it would not be given.
    """
    form = f"loss_fn({first}, batch), or loss_fn({first}, batch, rng) to be given a random key of each step"
    return check_takes("loss_fn", loss_fn, form, 2, by_name="rng")
