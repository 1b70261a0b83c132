"""Brings Keras models under a strategy: those made in the same thread while its scope is open, and those adopted."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from inspect import signature
from typing import Any

import keras
from keras.src.trainers.trainer import Trainer

from stratagem.errors import StrategyError
from stratagem.strategies.base import Strategy

TESTED = ("3.15",)
"""The versions of Keras that Stratagem's own tests run with."""
_ATTRIBUTE = "_stratagem"
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
_log = logging.getLogger(__name__)


class KerasFront:
    """Keras, as strategies see it by their entry point."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._originals: list[tuple[type, Any]] = []
        self._here = threading.local()
        if not keras.__version__.startswith(tuple(f"{version}." for version in TESTED)):
            _log.warning(
                "Keras %s has not been tested with this Stratagem, which knows %s: if something is amiss, "
                "pip install 'stratagem[keras]' brings one that has",
                keras.__version__,
                ", ".join(TESTED),
            )

    @contextmanager
    def scope(self, strategy: Strategy) -> Iterator[None]:
        """Adopt every model that this thread makes in the block; afterwards Keras is as it was."""
        _check_backend()
        self._patch()
        before = getattr(self._here, "strategy", None)
        self._here.strategy = strategy
        try:
            yield
        finally:
            self._here.strategy = before
            self._restore()

    def adopt(self, strategy: Strategy, model: Any) -> bool:
        """Have a model train under a strategy; return `False` if it is not a Keras model."""
        if not isinstance(model, Trainer):
            return False
        _adopt(strategy, model)
        return True

    def _patch(self) -> None:
        with self._lock:
            self._open += 1
            if self._open > 1:
                return
            self._originals = [
                self._patch_init(kind, then)
                for kind, then in ((Trainer, _adopt), (keras.layers.Embedding, _serve_if_large))
            ]

    def _patch_init(self, kind: type, then: Callable[[Strategy, Any], None]) -> tuple[type, Any]:
        """Have `then` called with every new object of a class where a scope is open; return the class and its constructor."""
        original, here = kind.__init__, self._here  # type: ignore[misc]

        @wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            strategy = getattr(here, "strategy", None)
            if strategy is not None:
                then(strategy, self)

        __init__.__signature__ = signature(original)  # type: ignore[attr-defined]  # Keras looks at it
        kind.__init__ = __init__  # type: ignore[misc]
        return kind, original

    def _restore(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                for kind, original in self._originals:
                    kind.__init__ = original  # type: ignore[misc]


def _adopt(strategy: Strategy, model: Any) -> None:
    """Set attributes of a model that let it train under a strategy; of several strategies the last one counts.

    Its class stays as it is, so the model is saved, cloned and recognised as before, and methods of the user's own are
    called as always.
    """
    _check_backend()
    # Imported late: they need parts of Keras that exist only where Keras computes with JAX.
    from stratagem.keras.adopted_model import AdoptedModel
    from stratagem.keras.saving import WRITERS, load_weights, save

    adopted = AdoptedModel(strategy, model)
    # Names that begin with an underscore are private to Keras, not to us.
    overrides = {name: getattr(adopted, name.lstrip("_")) for name in _OVERRIDDEN}
    overrides |= {name: partial(save, adopted, name) for name in WRITERS}
    overrides["load_weights"] = partial(load_weights, adopted)
    attributes: dict[str, Any] = {_ATTRIBUTE: adopted}
    for name, override in overrides.items():
        if hasattr(type(model), name):  # a bare trainer has no files
            attributes[name] = _method(model, name, override)
    attributes |= dict.fromkeys(("train_function", "test_function", "predict_function"))
    for name, value in attributes.items():
        # Without the model's own __setattr__, which would look for layers and variables.
        object.__setattr__(model, name, value)


def _method(model: Any, name: str, override: Callable[..., Any]) -> Callable[..., Any]:
    def method(*args: Any, **kwargs: Any) -> Any:
        return override(*args, **kwargs)

    method.__name__ = name
    method.__doc__ = getattr(type(model), name).__doc__
    return method


def _serve_if_large(strategy: Strategy, layer: Any) -> None:
    if strategy.tables_above is not None:
        from stratagem.keras.served_embedding import serve_if_large

        serve_if_large(layer, strategy.tables_above)


def _check_backend() -> None:
    if keras.backend.backend() != "jax":
        raise StrategyError(
            f"Keras computes with {keras.backend.backend()}, and strategies need JAX: set KERAS_BACKEND=jax before the "
            "first import of keras (in a shell `KERAS_BACKEND=jax python SCRIPT`, or "
            "os.environ['KERAS_BACKEND'] = 'jax' as the first lines of the script)"
        )
    if keras.distribution.distribution() is not None:
        raise StrategyError(
            "a keras.distribution is set as well: choose between that and a strategy of Stratagem's "
            "(keras.distribution.set_distribution(None) takes it away)"
        )
