"""The arguments of a call of a model's method by name, so that some can be added or changed."""

import inspect
from typing import Any

import keras

from stratagem.errors import StrategyError


def named_arguments(name: str, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name, as a method of the model's takes them, be it Keras's own or the user's.

    Raises:
        StrategyError: It is a `fit` of the user's that has no room for callbacks.
    """
    own = inspect.signature(getattr(type(model), name)).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values())
    takes_rest = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in own.values())
    if name == "fit" and "callbacks" not in own and not takes_any:
        raise StrategyError(
            f"{type(model).__name__}.fit takes no callbacks, which a strategy needs: give it **kwargs, and pass them on "
            "to super().fit"
        )
    # One that passes everything on has Keras's own arguments.
    method = getattr(keras.Model if takes_rest else type(model), name)
    bound = inspect.signature(method).bind(model, *args, **kwargs)
    named = dict(list(bound.arguments.items())[1:])
    for parameter in inspect.signature(method).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named.update(named.pop(parameter.name, {}))
    return named
