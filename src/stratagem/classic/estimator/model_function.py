"""A model function, called and checked for one mode and one form of batches; evaluation and prediction with it."""

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.classic.estimator.estimator_specs import EstimatorSpec, ModeKeys
from stratagem.classic.estimator.input_function import BatchForm
from stratagem.engines.feeds import nonempty
from stratagem.engines.rows import count_rows
from stratagem.errors import DataError, StrategyError
from stratagem.strategies import Strategy
from stratagem.waist.user_functions import check_callable, checked_loss, describe

_ARGUMENTS = ("labels", "mode", "params", "config")

# The model function.


def check_model_fn(model_fn: Callable[..., Any], params: Any) -> None:
    """Raise unless a function can be called as a model function.

    Raises:
        StrategyError: The function requires other arguments, or does not ask for params that are given.
    """
    check_callable("model_fn", model_fn, "model_fn(features, labels, mode, params) -> EstimatorSpec")
    required = _arguments(model_fn)
    unknown = [
        name for name, is_required in list(required.items())[1:] if is_required and name not in _ARGUMENTS
    ]
    if not required or unknown:
        raise StrategyError(
            f"model_fn asks for {', '.join(unknown) or 'nothing'}; it is model_fn(features, labels, mode, params, "
            "config), where all but features may be left out"
        )
    if params is not None and "params" not in required:
        raise StrategyError("params are given, but model_fn does not ask for params: add that argument")


def call_model_fn(
    model_fn: Callable[..., Any], form: BatchForm, mode: ModeKeys, params: Any, config: Any
) -> EstimatorSpec:
    """Call a model function and check its result.

    Raises:
        StrategyError: The function computes with features or labels, or does not return a spec for the mode.
    """
    values = {"labels": form.labels, "mode": mode, "params": params, "config": config}
    names = _arguments(model_fn)
    try:
        spec = model_fn(form.features, **{name: value for name, value in values.items() if name in names})
    except (AttributeError, TypeError) as error:
        if jax.ShapeDtypeStruct.__name__ not in str(error):  # an error of another kind
            raise
        raise StrategyError(
            f"the model function computes with features or labels: {error}. It gets only their shapes and dtypes: "
            "compute in the functions that it returns, such as EstimatorSpec(loss=lambda params, features, labels: …)"
        ) from error
    if not isinstance(spec, EstimatorSpec):
        raise StrategyError(f"the model function returned {spec!r:.80}; it has to return an EstimatorSpec")
    spec.check_for(mode)
    return spec


def _arguments(function: Callable[..., Any]) -> dict[str, bool]:
    """Return the names of a function's arguments, and whether each is required."""
    return {
        each.name: each.default is each.empty
        for each in inspect.signature(function).parameters.values()
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    }


class Model:
    """The spec that a model function returned, and the form of the batches that it was called with."""

    def __init__(self, spec: EstimatorSpec, form: BatchForm) -> None:
        self.spec = spec
        self._form = form

    def initial_params(self, seed: int) -> Any:
        """Return untrained parameters, which depend on the seed alone.

        Raises:
            StrategyError: There are none, or some cannot be trained.
        """
        params = self.spec.init(jax.random.key(seed), self._form.zeros)
        leaves = jax.tree_util.tree_leaves_with_path(params)
        wrong = [
            f"{describe(leaf)} at {jax.tree_util.keystr(path)}"
            for path, leaf in leaves
            if not _is_trainable(leaf)
        ]
        if wrong or not leaves:
            raise StrategyError(
                f"EstimatorSpec.init returned {wrong[0] if wrong else f'{describe(params)}, which has no array in it'}; give a "
                "pytree of floating-point arrays, all of which can be trained"
            )
        return params

    def loss_fn(self) -> Callable[..., Any]:
        """Return the loss as a function of parameters and a batch, as strategies take it."""
        if not self._wants_rng:
            return lambda params, batch: self._loss(params, *batch)

        def loss_with_rng(params: Any, batch: Any, rng: Any) -> Any:
            return self._loss(params, *batch, rng=rng)

        return loss_with_rng

    def _loss(self, params: Any, features: Any, labels: Any, **rng: Any) -> tuple[Any, Mapping[str, Any]]:
        """Return the loss and the metrics that come with it. Traceable."""
        try:
            result = self._spec_loss(params, features, labels, **rng)
        except (AttributeError, TypeError) as error:
            if labels is not None:
                raise
            raise DataError(
                f"EstimatorSpec.loss raised {type(error).__name__}: {error}. The batches have no labels, they are "
                "(features, None): give (features, labels) if the loss needs some"
            ) from error
        return checked_loss(result, "EstimatorSpec.loss")

    @property
    def _spec_loss(self) -> Callable[..., Any]:
        if self.spec.loss is None:
            raise StrategyError("this model has no loss: EstimatorSpec(loss=…)")
        return self.spec.loss

    @property
    def _wants_rng(self) -> bool:
        return "rng" in inspect.signature(self._spec_loss).parameters

    @cached_property
    def evaluate_batch(self) -> Any:
        """A compiled function from parameters, features and labels to the loss and all metrics."""

        def evaluate_batch(params: Any, features: Any, labels: Any) -> dict[str, Any]:
            rng = {"rng": jax.random.key(0)} if self._wants_rng else {}
            loss, metrics = self._loss(params, features, labels, **rng)
            more = {name: metric(params, features, labels) for name, metric in self.spec.eval_metrics.items()}
            return {**metrics, **more, "loss": loss}

        return jax.jit(evaluate_batch)

    @cached_property
    def predict_batch(self) -> Any:
        """A compiled function from parameters and features to predictions."""
        return jax.jit(self.spec.predictions)  # type: ignore[arg-type]  # the mode has been checked


def _is_trainable(value: Any) -> bool:
    is_number = isinstance(value, float) or hasattr(value, "dtype")
    return is_number and bool(jnp.issubdtype(jnp.result_type(value), jnp.inexact))


# Evaluation and prediction, on the devices of a strategy.


def evaluate_model(
    strategy: Strategy, model: Model, params: Any, batches: Iterable[Any], steps: int | None
) -> dict[str, float]:
    """Return the means of the loss and the metrics over all rows, shared out among the strategy's workers.

    Raises:
        DataError: There is no row, or a metric is not one number.
    """
    replicas = strategy.engine.replicas
    device_params = replicas.replicate(params)
    is_shared = strategy.feed.shares_evaluation
    take_share = strategy.feed.deal() if is_shared else None
    names: list[str] | None = None
    results: list[tuple[int, Any]] = []
    for batch in itertools.islice(nonempty(batches), steps):
        if names is None:
            names = _metric_names(jax.eval_shape(model.evaluate_batch, params, *batch))
        share = batch if take_share is None else take_share(batch)
        rows = count_rows(share)
        if rows:
            metrics = model.evaluate_batch(device_params, *replicas.place(share))
            results.append((rows, replicas.settle(metrics)))
    sums = np.zeros(len(names or ()) + 1)
    for rows, metrics in results:
        sums += rows * np.array([*(float(metrics[name]) for name in names or ()), 1.0])
    if is_shared:
        sums = np.sum(list(strategy.workers.gather(sums)), axis=0)
    if not names or not sums[-1]:
        raise DataError("there are no rows to evaluate on: input_fn returned only empty batches")
    return dict(zip(names, (sums[:-1] / sums[-1]).tolist(), strict=True))


def _metric_names(forms: dict[str, Any]) -> list[str]:
    for name, form in forms.items():
        if form.shape:
            raise DataError(
                f"the metric {name!r} is an array of shape {form.shape}; give one number, the mean over the rows"
            )
    return sorted(forms)


def predict_rows(
    strategy: Strategy, model: Model, params: Any, batches: Iterable[Any], keys: Sequence[str] | None
) -> Iterator[dict[str, Any]]:
    """Yield the predictions for each row.

    Raises:
        DataError: The model lacks a prediction that is asked for, or one does not have the rows first.
    """
    replicas = strategy.engine.replicas
    device_params = replicas.replicate(params)
    for features, _ in nonempty(batches):
        outputs = replicas.settle(model.predict_batch(device_params, replicas.place(features)))
        by_name = outputs if isinstance(outputs, dict) else {"predictions": outputs}
        unknown = [key for key in keys or () if key not in by_name]
        if unknown:
            raise DataError(
                f"the model predicts {', '.join(by_name)}, not {unknown[0]!r}: ask for some of those"
            )
        selected = {key: np.asarray(by_name[key]) for key in (by_name if keys is None else keys)}
        rows = count_rows(features)
        for key, value in selected.items():
            if not value.shape or value.shape[0] != rows:
                raise DataError(
                    f"the prediction {key!r} has the shape {value.shape} for {rows} rows: give an array with the rows "
                    "first"
                )
        for row in range(rows):
            yield {key: value[row] for key, value in selected.items()}
