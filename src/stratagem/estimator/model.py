"""A model function, called for one mode and one form of batches: what a training, an evaluation, a prediction need."""

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax

from stratagem.errors import StrategyError
from stratagem.estimator.inputs import Form, one_row_of_zeros
from stratagem.estimator.spec import EstimatorSpec, ModeKeys

_KNOWN = ("labels", "mode", "params", "config")


def build(
    model_fn: Callable[..., Any], form: Form, mode: ModeKeys, params: Any, config: Any
) -> EstimatorSpec:
    """What a model function returns, checked.

    Raises:
        StrategyError: It asks for what it does not get, or returns something else.
    """
    given = {"labels": form.labels, "mode": mode, "params": params, "config": config}
    asked = set(_asked(model_fn))
    spec = model_fn(form.features, **{name: value for name, value in given.items() if name in asked})
    if not isinstance(spec, EstimatorSpec):
        raise StrategyError(f"the model function returned {spec!r}; it is to return an EstimatorSpec")
    spec.check_for(mode)
    return spec


def check_model_fn(model_fn: Callable[..., Any], params: Any) -> None:
    """Refuses a function that cannot be called as a model function.

    Raises:
        StrategyError: It asks for something else, or does not ask for params that are given.
    """
    if not callable(model_fn):
        raise StrategyError(
            f"model_fn is {model_fn!r}; give a function model_fn(features, labels, mode, params) -> EstimatorSpec"
        )
    asked = _asked(model_fn)
    unknown = [name for name, is_needed in list(asked.items())[1:] if is_needed and name not in _KNOWN]
    if not asked or unknown:
        raise StrategyError(
            f"model_fn asks for {', '.join(unknown) or 'nothing'}; it is model_fn(features, labels, mode, params, "
            "config), where all but features may be left out"
        )
    if params is not None and "params" not in asked:
        raise StrategyError("params are given, but model_fn does not ask for params: add that argument")


def _asked(function: Callable[..., Any]) -> dict[str, bool]:
    """What a function asks for, and whether it needs it."""
    return {
        each.name: each.default is each.empty
        for each in inspect.signature(function).parameters.values()
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    }


class Model:
    """A spec and the form of its batches.

    Args:
        spec: What the model function returned.
        form: What it was called for.
    """

    def __init__(self, spec: EstimatorSpec, form: Form) -> None:
        self.spec = spec
        self._form = form

    def initial(self, seed: int) -> Any:
        """Untrained parameters: the same from the same seed, everywhere."""
        return self.spec.init(jax.random.key(seed), one_row_of_zeros(self._form.features))

    def loss_fn(self) -> Callable[..., Any]:
        """The loss as strategies want it: of parameters and a batch."""
        loss = self._loss
        if not self._wants_rng:
            return lambda params, batch: loss(params, *batch)

        def drawing(params: Any, batch: Any, rng: Any) -> Any:
            return loss(params, *batch, rng=rng)

        return drawing

    @property
    def _loss(self) -> Callable[..., Any]:
        if self.spec.loss is None:
            raise StrategyError("this model has no loss: EstimatorSpec(loss=…)")
        return self.spec.loss

    @property
    def _wants_rng(self) -> bool:
        return "rng" in inspect.signature(self._loss).parameters

    @cached_property
    def measure(self) -> Any:
        """The loss and all metrics of a batch, compiled."""

        def measure(params: Any, features: Any, labels: Any) -> dict[str, Any]:
            drawn = {"rng": jax.random.key(0)} if self._wants_rng else {}
            returned = self._loss(params, features, labels, **drawn)
            loss, metrics = returned if isinstance(returned, tuple) else (returned, {})
            told = {name: metric(params, features, labels) for name, metric in self.spec.eval_metrics.items()}
            return {**metrics, **told, "loss": loss}

        return jax.jit(measure)

    @cached_property
    def predict(self) -> Any:
        """What the model makes of features, compiled."""
        return jax.jit(self.spec.predictions)  # type: ignore[arg-type]  # the mode has been checked
