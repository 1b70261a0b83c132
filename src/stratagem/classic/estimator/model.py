"""A model function, called for one mode and one form of batches: what a training, an evaluation, a prediction need."""

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import jax

from stratagem.classic.estimator.inputs import Form, one_row_of_zeros
from stratagem.classic.estimator.returned import checked_params
from stratagem.classic.estimator.spec import EstimatorSpec, ModeKeys
from stratagem.errors import DataError, StrategyError
from stratagem.waist.user_functions import check_callable, checked_loss

_KNOWN = ("labels", "mode", "params", "config")


def build(
    model_fn: Callable[..., Any], form: Form, mode: ModeKeys, params: Any, config: Any
) -> EstimatorSpec:
    """What a model function returns, checked.

    Raises:
        StrategyError: It computes with what it gets, or returns something else.
    """
    given = {"labels": form.labels, "mode": mode, "params": params, "config": config}
    asked = set(_asked(model_fn))
    try:
        spec = model_fn(form.features, **{name: value for name, value in given.items() if name in asked})
    except (AttributeError, TypeError) as error:
        if jax.ShapeDtypeStruct.__name__ not in str(error):  # then it is about something else
            raise
        raise StrategyError(
            f"the model function computes with features or labels: {error}. It gets their shapes and dtypes alone: "
            "compute in the functions that it returns, such as EstimatorSpec(loss=lambda params, features, labels: …)"
        ) from error
    if not isinstance(spec, EstimatorSpec):
        raise StrategyError(f"the model function returned {spec!r:.80}; it is to return an EstimatorSpec")
    spec.check_for(mode)
    return spec


def check_model_fn(model_fn: Callable[..., Any], params: Any) -> None:
    """Refuses a function that cannot be called as a model function.

    Raises:
        StrategyError: It asks for something else, or does not ask for params that are given.
    """
    check_callable("model_fn", model_fn, "model_fn(features, labels, mode, params) -> EstimatorSpec")
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
        return checked_params(self.spec.init(jax.random.key(seed), one_row_of_zeros(self._form.features)))

    def loss_fn(self) -> Callable[..., Any]:
        """The loss as strategies want it: of parameters and a batch."""
        if not self._wants_rng:
            return lambda params, batch: self._loss(params, *batch)

        def drawing(params: Any, batch: Any, rng: Any) -> Any:
            return self._loss(params, *batch, rng=rng)

        return drawing

    def _loss(self, params: Any, features: Any, labels: Any, **drawn: Any) -> tuple[Any, Mapping[str, Any]]:
        """The loss and the metrics that come with it; traceable."""
        try:
            returned = self._spec_loss(params, features, labels, **drawn)
        except (AttributeError, TypeError) as error:
            if labels is not None:
                raise
            raise DataError(
                f"EstimatorSpec.loss raised {type(error).__name__}: {error}; and the batches have no labels, they are "
                "(features, None): give (features, labels) if it needs some"
            ) from error
        return checked_loss(returned, "EstimatorSpec.loss")

    @property
    def _spec_loss(self) -> Callable[..., Any]:
        if self.spec.loss is None:
            raise StrategyError("this model has no loss: EstimatorSpec(loss=…)")
        return self.spec.loss

    @property
    def _wants_rng(self) -> bool:
        return "rng" in inspect.signature(self._spec_loss).parameters

    @cached_property
    def measure(self) -> Any:
        """The loss and all metrics of a batch, compiled."""

        def measure(params: Any, features: Any, labels: Any) -> dict[str, Any]:
            drawn = {"rng": jax.random.key(0)} if self._wants_rng else {}
            loss, metrics = self._loss(params, features, labels, **drawn)
            told = {name: metric(params, features, labels) for name, metric in self.spec.eval_metrics.items()}
            return {**metrics, **told, "loss": loss}

        return jax.jit(measure)

    @cached_property
    def predict(self) -> Any:
        """What the model makes of features, compiled."""
        return jax.jit(self.spec.predictions)  # type: ignore[arg-type]  # the mode has been checked
