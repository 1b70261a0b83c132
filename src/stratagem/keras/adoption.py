"""What an adopted model does differently: its train, test and predict functions, and what goes on around them.

Only attributes of the instance are set. Its class stays what it is, so that it is saved, cloned and recognised as
before, and methods of the user's own are called as always.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from stratagem.keras.adopted import AdoptedModel
from stratagem.keras.saving import WRITERS, load_weights, save
from stratagem.strategies.base import Strategy

_ADOPTED = "_stratagem"
_OVERRIDDEN = (
    "fit",
    "evaluate",
    "predict",
    "train_on_batch",
    "test_on_batch",
    "predict_on_batch",
    "make_train_function",
    "make_test_function",
    "make_predict_function",
    "jax_state_sync",
    "_symbolic_build",
    "_get_metrics_result_or_logs",
)


def adopt(strategy: Strategy, model: Any) -> None:
    """Have a model train under a strategy from now on; the last one counts."""
    adopted = AdoptedModel(strategy, model)
    # Not by the model's own __setattr__, which would look for layers and variables in it.
    object.__setattr__(model, _ADOPTED, adopted)
    for name in _OVERRIDDEN:
        # What begins with an underscore is private to Keras, not to us.
        object.__setattr__(model, name, _method(model, name, getattr(adopted, name.lstrip("_"))))
    for name in WRITERS:
        if hasattr(type(model), name):  # a bare trainer has none
            object.__setattr__(model, name, _method(model, name, partial(save, adopted, name)))
    if hasattr(type(model), "load_weights"):
        method = _method(model, "load_weights", partial(load_weights, adopted))
        object.__setattr__(model, "load_weights", method)
    for name in ("train_function", "test_function", "predict_function"):
        object.__setattr__(model, name, None)


def _method(model: Any, name: str, override: Callable[..., Any]) -> Callable[..., Any]:
    def method(*args: Any, **kwargs: Any) -> Any:
        return override(*args, **kwargs)

    method.__name__ = name
    method.__doc__ = getattr(type(model), name).__doc__
    return method
