"""Models that need no model function, `LinearRegressor` and `DNNClassifier`, and optimizers by TensorFlow's names."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stratagem.classic.estimator.estimator import Estimator
from stratagem.classic.estimator.estimator_specs import EstimatorSpec, ModeKeys, RunConfig, check_count
from stratagem.errors import DataError, StrategyError
from stratagem.waist.user_functions import describe_type


class LinearRegressor(Estimator):
    """A linear model, trained on the mean squared error.

    Predictions: `predictions`, an array of `label_dimension` values for each row. Evaluation: `loss`, `prediction/mean`
    and `label/mean`.

    Args:
        feature_columns: The names of the features to use, each numeric. `None`: all of them, or the features are one
            array.
        model_dir: The directory of checkpoints and summaries.
        label_dimension: The number of values in a label.
        optimizer: Any optax optimizer; or `Adagrad`, `Adam`, `Ftrl`, `RMSProp` or `SGD`, with TensorFlow's learning rate
            of 0.2. By default `optax.adam(0.05)`.
        config: How it is run.

    Example:
        >>> regressor = LinearRegressor(["rooms", "age"], model_dir="houses")
        >>> regressor.train(lambda: [({"rooms": rooms, "age": age}, prices)] * 100)
    """

    def __init__(
        self,
        feature_columns: Sequence[str] | None = None,
        model_dir: str | PathLike[str] | None = None,
        label_dimension: int = 1,
        optimizer: Any = None,
        config: RunConfig | None = None,
    ) -> None:
        outputs = check_count("label_dimension", label_dimension)
        columns = _check_columns(feature_columns)
        tx = choose_optimizer(optimizer, optax.adam(0.05), learning_rate=0.2)

        def predictions(params: Any, features: Any) -> Any:
            return _concatenate(features, columns) @ params["linear"]["kernel"] + params["linear"]["bias"]

        def as_columns(labels: Any) -> Any:
            return jnp.asarray(labels).reshape(-1, outputs)

        def model_fn(features: Any) -> EstimatorSpec:
            inputs = _width(features, columns)
            return EstimatorSpec(
                init=lambda rng, features: {
                    "linear": {"kernel": jnp.zeros((inputs, outputs)), "bias": jnp.zeros(outputs)}
                },
                loss=lambda params, features, labels: jnp.mean(
                    (predictions(params, features) - as_columns(labels)) ** 2
                ),
                predictions=lambda params, features: {"predictions": predictions(params, features)},
                eval_metrics={
                    "prediction/mean": lambda params, features, labels: predictions(params, features).mean(),
                    "label/mean": lambda params, features, labels: as_columns(labels).mean(),
                },
                optimizer=tx,
            )

        super().__init__(model_fn, model_dir, config)
        self._check_labels = partial(_check_width, outputs, "or set another label_dimension")


class DNNClassifier(Estimator):
    """Fully connected layers and a softmax, trained on the cross-entropy.

    Labels are whole numbers from 0 to `n_classes` − 1. Predictions: `logits`, `probabilities` and `class_ids`.
    Evaluation: `loss` and `accuracy`.

    Args:
        hidden_units: The number of units of each hidden layer.
        feature_columns: The names of the features to use, each numeric. `None`: all of them, or the features are one
            array.
        model_dir: The directory of checkpoints and summaries.
        n_classes: The number of classes.
        optimizer: Any optax optimizer; or `Adagrad`, `Adam`, `Ftrl`, `RMSProp` or `SGD`, with TensorFlow's learning rate
            of 0.05. By default `optax.adam(1e-3)`.
        activation_fn: The activation function of the hidden layers.
        dropout: The fraction of the hidden units to drop in training.
        config: How it is run.

    Example:
        >>> classifier = DNNClassifier([128, 32], n_classes=10, model_dir="digits")
        >>> classifier.train(batches, max_steps=1000).evaluate(test_batches)["accuracy"]
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[str] | None = None,
        model_dir: str | PathLike[str] | None = None,
        n_classes: int = 2,
        optimizer: Any = None,
        activation_fn: Callable[[Any], Any] = jax.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
    ) -> None:
        classes = check_count("n_classes", n_classes, least=2)
        if not isinstance(hidden_units, Iterable):
            raise StrategyError(
                f"hidden_units is {hidden_units!r}; give a list of whole numbers, such as [128, 32]"
            )
        sizes = [*(check_count("each of hidden_units", units) for units in hidden_units), classes]
        if dropout is not None and not 0 <= dropout < 1:
            raise StrategyError(f"dropout is {dropout!r}; give a number from 0 to below 1, or None")
        columns = _check_columns(feature_columns)
        tx = choose_optimizer(optimizer, optax.adam(1e-3), learning_rate=0.05)

        def logits(params: Any, features: Any, rng: Any = None) -> Any:
            hidden = _concatenate(features, columns)
            for number in range(len(sizes) - 1):
                hidden = activation_fn(_dense(params[f"hidden_{number}"], hidden))
                if rng is not None and dropout:
                    hidden = _dropout(jax.random.fold_in(rng, number), hidden, dropout)
            return _dense(params["logits"], hidden)

        def loss(params: Any, features: Any, labels: Any, rng: Any) -> Any:
            return _cross_entropy(logits(params, features, rng), labels)

        def loss_without_dropout(params: Any, features: Any, labels: Any) -> Any:
            return _cross_entropy(logits(params, features), labels)

        def accuracy(params: Any, features: Any, labels: Any) -> Any:
            return jnp.mean(logits(params, features).argmax(axis=1) == _classes(labels))

        def predictions(params: Any, features: Any) -> Any:
            scores = logits(params, features)
            return {
                "logits": scores,
                "probabilities": jax.nn.softmax(scores),
                "class_ids": scores.argmax(axis=1),
            }

        def model_fn(features: Any, mode: ModeKeys) -> EstimatorSpec:
            return EstimatorSpec(
                init=partial(_init_layers, [_width(features, columns), *sizes]),
                loss=loss if mode is ModeKeys.TRAIN and dropout else loss_without_dropout,
                predictions=predictions,
                eval_metrics={"accuracy": accuracy},
                optimizer=tx,
            )

        super().__init__(model_fn, model_dir, config)
        self._check_labels = partial(_check_classes, classes)


def _check_columns(names: Sequence[str] | None) -> list[str] | None:
    if names is None:
        return None
    if isinstance(names, str) or not names or not all(isinstance(name, str) for name in names):
        raise StrategyError(
            f"feature_columns is {names!r}; give names of numeric features, such as ['rooms', 'age'], or None"
        )
    return list(names)


def _select(features: Any, columns: list[str] | None) -> list[Any]:
    """Return the arrays of the features to use."""
    if not isinstance(features, Mapping):
        if columns is not None:
            raise DataError(
                f"feature_columns are {', '.join(columns)}, but the features have no names: give a dictionary of arrays"
            )
        return [features]
    missing = [name for name in columns or () if name not in features]
    if missing:
        raise DataError(f"there is no feature {missing[0]!r}; the batches have {', '.join(sorted(features))}")
    return [features[name] for name in (sorted(features) if columns is None else columns)]


def _width(features: Any, columns: list[str] | None) -> int:
    """Return the number of values in a row."""
    return int(jax.eval_shape(lambda arrays: _concatenate(arrays, columns), features).shape[1])


def _concatenate(features: Any, columns: list[str] | None) -> Any:
    """Concatenate the features of each row."""
    arrays = _select(features, columns)
    return jnp.concatenate(
        [array.reshape(array.shape[0], -1).astype(jnp.float32) for array in map(jnp.asarray, arrays)], axis=1
    )


def _check_width(width: int, advice: str, labels: Any) -> None:
    """Raise a `DataError` unless the labels have `width` values for each row."""
    if not hasattr(labels, "shape"):
        raise DataError(
            f"the labels are {'missing' if labels is None else describe_type(labels)}; give one array, one label for each row"
        )
    if not labels.shape or math.prod(labels.shape[1:]) != width:
        raise DataError(
            f"the labels have the shape {tuple(labels.shape)}; give an array with {width} number(s) for each row, "
            f"{advice}"
        )


def _check_classes(n_classes: int, labels: Any) -> None:
    """Raise a `DataError` for labels that are not classes: they would make the loss NaN, and all parameters with it."""
    _check_width(1, "the class, which is argmax(axis=1) of one-hot labels", labels)
    values = np.asarray(labels)
    wrong = values[(values < 0) | (values >= n_classes) | (values != np.floor(values))]
    if wrong.size:
        raise DataError(
            f"{wrong.size} of {values.size} labels are not classes, such as {wrong[0]}; n_classes is {n_classes}, so give "
            f"whole numbers from 0 to {n_classes - 1}, or a larger n_classes"
        )


def _classes(labels: Any) -> Any:
    return jnp.asarray(labels).reshape(-1).astype(jnp.int32)


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, _classes(labels)).mean()


def _init_layers(sizes: Sequence[int], rng: Any, features: Any) -> Any:
    names = [*(f"hidden_{number}" for number in range(len(sizes) - 2)), "logits"]
    keys = jax.random.split(rng, len(names))
    draw = jax.nn.initializers.glorot_uniform()
    return {
        name: {"kernel": draw(key, (width, units)), "bias": jnp.zeros(units)}
        for name, key, width, units in zip(names, keys, sizes[:-1], sizes[1:], strict=True)
    }


def _dense(params: Any, inputs: Any) -> Any:
    return inputs @ params["kernel"] + params["bias"]


def _dropout(rng: Any, values: Any, rate: float) -> Any:
    mask = jax.random.bernoulli(rng, 1 - rate, values.shape)
    return jnp.where(mask, values / (1 - rate), 0.0)


# Optimizers by TensorFlow's names, among them FTRL, which optax does not have.

_FIRST_SUM: Final = 0.1
"""The initial value of the sums of squared gradients in Adagrad and FTRL, as in TensorFlow."""


class FtrlState(NamedTuple):
    """The state of FTRL: for each parameter two arrays of its shape.

    Attributes:
        squares: Sums of the squared gradients.
        linear: Sums of the gradients, less those that correct for the falling learning rate.
    """

    squares: Any
    linear: Any


def ftrl(learning_rate: float) -> optax.GradientTransformation:
    """Follow the regularized leader: McMahan's proximal form, without regularisation.

    TensorFlow's formula: the learning rate falls as one over the root of the summed squares.
    """

    def init(params: Any) -> FtrlState:
        return FtrlState(
            squares=jax.tree.map(lambda param: jnp.full_like(param, _FIRST_SUM), params),
            linear=jax.tree.map(jnp.zeros_like, params),
        )

    def update(grads: Any, state: FtrlState, params: Any = None) -> tuple[Any, FtrlState]:
        squares = jax.tree.map(lambda total, grad: total + grad**2, state.squares, grads)

        def add(linear: Any, grad: Any, before: Any, after: Any, param: Any) -> Any:
            return linear + grad - (jnp.sqrt(after) - jnp.sqrt(before)) / learning_rate * param

        linear = jax.tree.map(add, state.linear, grads, state.squares, squares, params)
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


def choose_optimizer(optimizer: Any, default: optax.GradientTransformation, learning_rate: float) -> Any:
    """Return an optax optimizer as it is, the default for `None`, or an optimizer by TensorFlow's name, in any case.

    Raises:
        StrategyError: There is no optimizer of that name.
    """
    if optimizer is None:
        return default
    if not isinstance(optimizer, str):
        return optimizer
    for name, make in _BY_NAME.items():
        if name.lower() == optimizer.lower():
            return make(learning_rate)
    raise StrategyError(
        f"optimizer is {optimizer!r}; give one of {', '.join(_BY_NAME)}, or an optax optimizer, such as optax.adam(1e-3)"
    )
