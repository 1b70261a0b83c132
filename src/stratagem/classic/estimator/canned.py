"""Models that need no model function: `LinearRegressor` and `DNNClassifier`."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stratagem.classic.estimator.checks import count
from stratagem.classic.estimator.config import RunConfig
from stratagem.classic.estimator.estimator import Estimator
from stratagem.classic.estimator.optimizers import chosen_optimizer
from stratagem.classic.estimator.spec import EstimatorSpec, ModeKeys
from stratagem.errors import DataError, StrategyError
from stratagem.waist.user_functions import describe_type


class LinearRegressor(Estimator):
    """A linear model, trained on the mean squared error.

    Predicts `predictions`, an array of `label_dimension` for each row; evaluates to `loss`, `prediction/mean` and
    `label/mean`.

    Args:
        feature_columns: The names of the features to look at, each numeric; `None`: all of them, or the features are
            one array.
        model_dir: For checkpoints and summaries.
        label_dimension: How many numbers a label has.
        optimizer: Any optax optimizer; or `Adagrad`, `Adam`, `Ftrl`, `RMSProp` or `SGD`, with TensorFlow's learning rate
            of 0.2; `optax.adam(0.05)` by default.
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
        outputs = count("label_dimension", label_dimension)
        columns = _columns(feature_columns)
        chosen = chosen_optimizer(optimizer, optax.adam(0.05), learning_rate=0.2)

        def predictions(params: Any, features: Any) -> Any:
            return _joined(features, columns) @ params["linear"]["kernel"] + params["linear"]["bias"]

        def shaped(labels: Any) -> Any:
            return jnp.asarray(labels).reshape(-1, outputs)

        def model_fn(features: Any) -> EstimatorSpec:
            inputs = _width(features, columns)
            return EstimatorSpec(
                init=lambda rng, features: {
                    "linear": {"kernel": jnp.zeros((inputs, outputs)), "bias": jnp.zeros(outputs)}
                },
                loss=lambda params, features, labels: jnp.mean(
                    (predictions(params, features) - shaped(labels)) ** 2
                ),
                predictions=lambda params, features: {"predictions": predictions(params, features)},
                eval_metrics={
                    "prediction/mean": lambda params, features, labels: predictions(params, features).mean(),
                    "label/mean": lambda params, features, labels: shaped(labels).mean(),
                },
                optimizer=chosen,
            )

        super().__init__(model_fn, model_dir, config)
        self._check_labels = partial(_check_width, outputs, "or say another label_dimension")


class DNNClassifier(Estimator):
    """Fully connected layers and a softmax, trained on the cross-entropy.

    Labels are whole numbers from 0 to `n_classes` − 1. Predicts `logits`, `probabilities` and `class_ids`; evaluates to
    `loss` and `accuracy`.

    Args:
        hidden_units: How many units each hidden layer has.
        feature_columns: The names of the features to look at, each numeric; `None`: all of them, or the features are
            one array.
        model_dir: For checkpoints and summaries.
        n_classes: How many classes there are.
        optimizer: Any optax optimizer; or `Adagrad`, `Adam`, `Ftrl`, `RMSProp` or `SGD`, with TensorFlow's learning rate
            of 0.05; `optax.adam(1e-3)` by default.
        activation_fn: What follows each hidden layer.
        dropout: Which part of the hidden units to drop in training.
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
        classes = count("n_classes", n_classes, least=2)
        if not isinstance(hidden_units, Iterable):
            raise StrategyError(
                f"hidden_units is {hidden_units!r}; give a list of whole numbers, such as [128, 32]"
            )
        sizes = [*(count("each of hidden_units", units) for units in hidden_units), classes]
        if dropout is not None and not 0 <= dropout < 1:
            raise StrategyError(f"dropout is {dropout!r}; give a number from 0 to below 1, or None")
        columns = _columns(feature_columns)
        chosen = chosen_optimizer(optimizer, optax.adam(1e-3), learning_rate=0.05)

        def logits(params: Any, features: Any, rng: Any = None) -> Any:
            hidden = _joined(features, columns)
            for number in range(len(sizes) - 1):
                hidden = activation_fn(_dense(params[f"hidden_{number}"], hidden))
                if rng is not None and dropout:
                    hidden = _dropped(jax.random.fold_in(rng, number), hidden, dropout)
            return _dense(params["logits"], hidden)

        def loss(params: Any, features: Any, labels: Any, rng: Any) -> Any:
            return _cross_entropy(logits(params, features, rng), labels)

        def calm_loss(params: Any, features: Any, labels: Any) -> Any:
            return _cross_entropy(logits(params, features), labels)

        def accuracy(params: Any, features: Any, labels: Any) -> Any:
            return jnp.mean(logits(params, features).argmax(axis=1) == _classes(labels))

        def predictions(params: Any, features: Any) -> Any:
            found = logits(params, features)
            return {
                "logits": found,
                "probabilities": jax.nn.softmax(found),
                "class_ids": found.argmax(axis=1),
            }

        def model_fn(features: Any, mode: ModeKeys) -> EstimatorSpec:
            return EstimatorSpec(
                init=partial(_layers, [_width(features, columns), *sizes]),
                loss=loss if mode is ModeKeys.TRAIN and dropout else calm_loss,
                predictions=predictions,
                eval_metrics={"accuracy": accuracy},
                optimizer=chosen,
            )

        super().__init__(model_fn, model_dir, config)
        self._check_labels = partial(_check_classes, classes)


def _columns(names: Sequence[str] | None) -> list[str] | None:
    if names is None:
        return None
    if isinstance(names, str) or not names or not all(isinstance(name, str) for name in names):
        raise StrategyError(
            f"feature_columns is {names!r}; give names of numeric features, such as ['rooms', 'age'], or None"
        )
    return list(names)


def _chosen(features: Any, columns: list[str] | None) -> list[Any]:
    """The arrays of the features to look at."""
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
    """How many numbers a row has."""
    joined = jax.eval_shape(lambda given: _joined(given, columns), features)
    return int(joined.shape[1])


def _joined(features: Any, columns: list[str] | None) -> Any:
    """All features of a row, one after the other."""
    arrays = _chosen(features, columns)
    return jnp.concatenate(
        [array.reshape(array.shape[0], -1).astype(jnp.float32) for array in map(jnp.asarray, arrays)], axis=1
    )


def _check_width(width: int, advice: str, labels: Any) -> None:
    """Refuses labels that are not so many numbers for each row."""
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
    """Refuses labels that are no classes: the cross-entropy would be NaN, and so all parameters."""
    _check_width(1, "the class, which is argmax(axis=1) of one-hot labels", labels)
    given = np.asarray(labels)
    wrong = given[(given < 0) | (given >= n_classes) | (given != np.floor(given))]
    if wrong.size:
        raise DataError(
            f"{wrong.size} of {given.size} labels are no classes, such as {wrong[0]}; n_classes is {n_classes}, so give "
            f"whole numbers from 0 to {n_classes - 1}, or a larger n_classes"
        )


def _classes(labels: Any) -> Any:
    return jnp.asarray(labels).reshape(-1).astype(jnp.int32)


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, _classes(labels)).mean()


def _layers(sizes: Sequence[int], rng: Any, features: Any) -> Any:
    names = [*(f"hidden_{number}" for number in range(len(sizes) - 2)), "logits"]
    keys = jax.random.split(rng, len(names))
    draw = jax.nn.initializers.glorot_uniform()
    return {
        name: {"kernel": draw(key, (width, units)), "bias": jnp.zeros(units)}
        for name, key, width, units in zip(names, keys, sizes[:-1], sizes[1:], strict=True)
    }


def _dense(params: Any, inputs: Any) -> Any:
    return inputs @ params["kernel"] + params["bias"]


def _dropped(rng: Any, values: Any, part: float) -> Any:
    kept = jax.random.bernoulli(rng, 1 - part, values.shape)
    return jnp.where(kept, values / (1 - part), 0.0)
