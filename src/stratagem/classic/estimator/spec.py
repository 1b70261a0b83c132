"""`EstimatorSpec`: what a model function returns, as pure functions; and the modes it is asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import optax

from stratagem.errors import StrategyError
from stratagem.waist.user_functions import check_takes


class ModeKeys(StrEnum):
    """What a model is wanted for; each is also the plain text that TensorFlow has for it."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


@dataclass(frozen=True)
class EstimatorSpec:
    """A model in one mode: functions of parameters and data, which are compiled and run wherever it trains.

    Where TensorFlow's `EstimatorSpec` has tensors of a graph, this one has pure functions. `params` is whatever
    `init` returns: any pytree of arrays.

    Attributes:
        init: `init(rng, features) -> params`. Its features are one row of zeros in the form of the batches, so that
            all workers begin alike.
        loss: `loss(params, features, labels)`, or with a further argument `rng` (for dropout): the mean loss over the
            rows, or that and a dictionary of metrics, each a mean too. Needed to train and to evaluate.
        predictions: `predictions(params, features)`: a dictionary of arrays with the rows first, or one such array.
            Needed to predict.
        eval_metrics: By name, `metric(params, features, labels)`: a mean over the rows.
        optimizer: Any optax optimizer. Needed to train.

    Example:
        >>> spec = EstimatorSpec(
        ...     init=lambda rng, features: {"w": jnp.zeros(features.shape[1])},
        ...     loss=lambda params, features, labels: jnp.mean((features @ params["w"] - labels) ** 2),
        ...     predictions=lambda params, features: {"y": features @ params["w"]},
        ...     optimizer=optax.sgd(0.1),
        ... )
    """

    init: Callable[[Any, Any], Any]
    loss: Callable[..., Any] | None = None
    predictions: Callable[[Any, Any], Any] | None = None
    eval_metrics: Mapping[str, Callable[[Any, Any, Any], Any]] = field(default_factory=dict)
    optimizer: Any = None

    def __post_init__(self) -> None:
        check_takes("EstimatorSpec.init", self.init, "init(rng, features) -> params", 2)
        if self.loss is not None:
            form = "loss(params, features, labels) -> mean loss; it may also ask for rng"
            check_takes("EstimatorSpec.loss", self.loss, form, 3, by_name="rng")
        if self.predictions is not None:
            check_takes("EstimatorSpec.predictions", self.predictions, "predictions(params, features)", 2)
        if not isinstance(self.eval_metrics, Mapping):
            raise StrategyError(
                f"EstimatorSpec.eval_metrics is {self.eval_metrics!r}; give a dictionary of functions by name"
            )
        for name, metric in self.eval_metrics.items():
            check_takes(
                f"EstimatorSpec.eval_metrics[{name!r}]", metric, "metric(params, features, labels)", 3
            )
        taken = [name for name in ("loss", "global_step") if name in self.eval_metrics]
        if taken:
            raise StrategyError(
                f"EstimatorSpec.eval_metrics has {taken[0]!r}, which evaluate() tells by itself; call it otherwise"
            )
        if self.optimizer is not None and not isinstance(self.optimizer, optax.GradientTransformation):
            raise StrategyError(
                f"EstimatorSpec.optimizer is {self.optimizer!r}; give an optax optimizer, such as optax.adam(1e-3)"
            )

    def check_for(self, mode: ModeKeys) -> None:
        """Refuses a model that lacks what a mode needs.

        Raises:
            StrategyError: It does.
        """
        needed = {
            ModeKeys.TRAIN: ("loss", "optimizer"),
            ModeKeys.EVAL: ("loss",),
            ModeKeys.PREDICT: ("predictions",),
        }
        missing = [name for name in needed[mode] if getattr(self, name) is None]
        if missing:
            raise StrategyError(
                f"the model function returned no {' and no '.join(missing)} in mode {mode.value!r}, which needs "
                f"{' and '.join(needed[mode])}: EstimatorSpec(init=…, {missing[0]}=…)"
            )
