"""The classes that users of the Estimator fill in: `RunConfig`, `EstimatorSpec`, `TrainSpec`, `EvalSpec` and `Hook`."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from os import PathLike
from typing import Any, Final, TypeAlias

import optax

from stratagem.devices.whole_numbers import whole_number
from stratagem.engines.tensorflow_names import RefusesTensorFlowNames
from stratagem.errors import StrategyError
from stratagem.strategies import Strategy
from stratagem.waist.user_functions import check_callable, check_takes

Distribute: TypeAlias = Strategy | Callable[[], Strategy]
"""A strategy, its class, or a function without arguments that makes one."""
SAVE_SECONDS: Final = 600.0
"""Seconds between checkpoints by default."""
INPUT_FN: Final = "that returns an iterable of (features, labels) batches"
"""The rest of "give a function …" where an input function is expected."""

# Checks of numbers.


def check_count(name: str, value: object, least: int = 1, alternative: str = "") -> int:
    """Return `value` as an `int`, if it is a whole number of at least `least`; else raise a `StrategyError`."""
    number = whole_number(value)
    if number is None or number < least:
        raise StrategyError(f"{name} is {value!r}; give a whole number of at least {least}{alternative}")
    return number


def check_optional_count(name: str, value: object) -> int | None:
    """Check a whole number that may be left out."""
    return None if value is None else check_count(name, value, alternative=", or None")


def _check_seconds(name: str, value: object, *, above_zero: bool = False) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (value > 0 if above_zero else value >= 0):  # type: ignore[operator]
        raise StrategyError(
            f"{name} is {value!r}; give a number of seconds{' above 0' if above_zero else ', 0 or more'}"
        )


# The run.


@dataclass(frozen=True)
class RunConfig(RefusesTensorFlowNames):
    """The settings of an Estimator: where it trains and evaluates, and how often it writes.

    `train_distribute` and `eval_distribute` may be a strategy, its class (`sg.MultiWorkerMirroredStrategy`) or a
    function without arguments that makes one. It is made when it is first needed, and once if both are the same. On an
    evaluator task a strategy of several processes consists of that process alone.

    Attributes:
        train_distribute: Where to train. `None`: on one device, the first accelerator or the CPU.
        eval_distribute: Where to evaluate and predict. `None`: as for training.
        model_dir: The directory of checkpoints and summaries, which all tasks of a cluster share.
        save_checkpoints_steps: Steps between checkpoints.
        save_checkpoints_secs: Seconds between checkpoints, instead of steps. 600 if neither is given. There is always
            a checkpoint at the end.
        keep_checkpoint_max: The number of newest checkpoints to keep.
        save_summary_steps: Steps between summaries; `None` for none.
        log_step_count_steps: Steps between lines of progress; `None` for none.
        seed: The seed of initial parameters and of the `rng` of losses.

    Example:
        >>> RunConfig(train_distribute=MirroredStrategy, save_checkpoints_steps=500)
    """

    train_distribute: Distribute | None = None
    eval_distribute: Distribute | None = None
    model_dir: str | PathLike[str] | None = None
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: float | None = None
    keep_checkpoint_max: int = 5
    save_summary_steps: int | None = 100
    log_step_count_steps: int | None = 100
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("train_distribute", "eval_distribute"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Strategy) and not callable(value):
                raise StrategyError(
                    f"{name} is {value!r}; give a strategy, its class, or a function that makes one"
                )
        for name in ("save_checkpoints_steps", "save_summary_steps", "log_step_count_steps"):
            object.__setattr__(self, name, check_optional_count(name, getattr(self, name)))
        if self.save_checkpoints_secs is not None:
            _check_seconds("save_checkpoints_secs", self.save_checkpoints_secs, above_zero=True)
            if self.save_checkpoints_steps is not None:
                raise StrategyError(
                    f"save_checkpoints_steps is {self.save_checkpoints_steps} and save_checkpoints_secs is "
                    f"{self.save_checkpoints_secs}: give one of them"
                )
        object.__setattr__(
            self, "keep_checkpoint_max", check_count("keep_checkpoint_max", self.keep_checkpoint_max)
        )
        seed = whole_number(self.seed)
        if seed is None:
            raise StrategyError(f"seed is {self.seed!r}; give a whole number")
        object.__setattr__(self, "seed", seed)

    def replace(self, **changes: Any) -> "RunConfig":
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)


def make_strategy(distribute: Distribute, name: str) -> Strategy:
    """Return the strategy, made if it is not one yet.

    Raises:
        StrategyError: The function returned something else.
    """
    strategy = distribute if isinstance(distribute, Strategy) else distribute()
    if not isinstance(strategy, Strategy):
        raise StrategyError(f"{name} returned {strategy!r}; it has to return a strategy")
    return strategy


# The model.


class ModeKeys(StrEnum):
    """The purpose that a model function is called for; each value is TensorFlow's string for it."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


_REQUIRED_FIELDS: Final = {
    ModeKeys.TRAIN: ("loss", "optimizer"),
    ModeKeys.EVAL: ("loss",),
    ModeKeys.PREDICT: ("predictions",),
}


@dataclass(frozen=True)
class EstimatorSpec:
    """A model in one mode: functions of parameters and data, compiled and run wherever the strategy trains.

    TensorFlow's `EstimatorSpec` has tensors of a graph; this one has pure functions. `params` is the value that
    `init` returns: any pytree of arrays.

    Attributes:
        init: `init(rng, features) -> params`. Its features are one row of zeros in the form of the batches, so that
            all workers begin alike.
        loss: `loss(params, features, labels)`, or with a further argument `rng` (for dropout): the mean loss over the
            rows, or a tuple of that and a dictionary of metrics, which are means too. Required to train and to evaluate.
        predictions: `predictions(params, features)`: a dictionary of arrays with the rows first, or one such array.
            Required to predict.
        eval_metrics: Functions by name, `metric(params, features, labels)`, each a mean over the rows.
        optimizer: Any optax optimizer. Required to train.

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
        reserved = [name for name in ("loss", "global_step") if name in self.eval_metrics]
        if reserved:
            raise StrategyError(
                f"EstimatorSpec.eval_metrics has {reserved[0]!r}, which evaluate() returns by itself; give the metric "
                "another name"
            )
        if self.optimizer is not None and not isinstance(self.optimizer, optax.GradientTransformation):
            raise StrategyError(
                f"EstimatorSpec.optimizer is {self.optimizer!r}; give an optax optimizer, such as optax.adam(1e-3)"
            )

    def check_for(self, mode: ModeKeys) -> None:
        """Raise a `StrategyError` if a field that the mode requires is missing."""
        missing = [name for name in _REQUIRED_FIELDS[mode] if getattr(self, name) is None]
        if missing:
            raise StrategyError(
                f"the model function returned no {' and no '.join(missing)} in mode {mode.value!r}, which needs "
                f"{' and '.join(_REQUIRED_FIELDS[mode])}: EstimatorSpec(init=…, {missing[0]}=…)"
            )


# Training and evaluation.


class Hook:
    """Called during a training. Derive from it and override methods; every worker calls its own hooks.

    Example:
        >>> class Losses(Hook):
        ...     def after_step(self, step, metrics):
        ...         losses.append(float(metrics["loss"]))
    """

    def begin(self, step: int) -> None:
        """Training begins, or goes on, at this step."""

    def after_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """A step has ended.

        Args:
            step: The global step now.
            metrics: The metrics of the step: `loss` and others. To read one waits for the device.
        """

    def end(self, step: int) -> None:
        """Training has ended at this step, without an error, and the last checkpoint is written."""


def check_hooks(name: str, hooks: object) -> tuple[Hook, ...]:
    """Return the hooks as a tuple, empty for `None`; raise a `StrategyError` if they are not a list of hooks."""
    if hooks is None:
        return ()
    items = tuple(hooks) if isinstance(hooks, Iterable) else (hooks,)
    if not isinstance(hooks, Iterable) or not all(isinstance(each, Hook) for each in items):
        raise StrategyError(
            f"{name} is {hooks!r:.80}; give a list of objects whose classes derive from sg.estimator.Hook"
        )
    return items


@dataclass(frozen=True)
class TrainSpec:
    """The data to train on, and how far to train.

    Attributes:
        input_fn: Makes the batches: see `Estimator.train`.
        max_steps: The global step to train to. `None`: to the end of the batches.
        hooks: Called during the training.
    """

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Sequence[Hook] = ()

    def __post_init__(self) -> None:
        check_callable("TrainSpec.input_fn", self.input_fn, INPUT_FN)
        object.__setattr__(self, "max_steps", check_optional_count("TrainSpec.max_steps", self.max_steps))
        object.__setattr__(self, "hooks", check_hooks("TrainSpec.hooks", self.hooks))


@dataclass(frozen=True)
class EvalSpec:
    """The data to evaluate on, and how often to evaluate.

    Attributes:
        input_fn: Makes the batches: see `Estimator.evaluate`.
        steps: The number of batches of one evaluation. `None`: all of them.
        name: Distinguishes several evaluations: summaries go to `eval_NAME`.
        start_delay_secs: Seconds after its start at which an evaluator task begins, unless training is over earlier.
            Without `stratagem run`, this is also the time that the chief has to start and to remove the marker by which
            an earlier training in the same directory said that it was over.
        throttle_secs: The least number of seconds from the start of one evaluation to that of the next. The last
            checkpoint is evaluated at once.
        wait_secs: Seconds without any sign of the training (no new checkpoint, no new summary) after which an evaluator
            task gives up.
    """

    input_fn: Callable[..., Any]
    steps: int | None = 100
    name: str | None = None
    start_delay_secs: float = 120
    throttle_secs: float = 600
    wait_secs: float = 7200

    def __post_init__(self) -> None:
        check_callable("EvalSpec.input_fn", self.input_fn, INPUT_FN)
        object.__setattr__(self, "steps", check_optional_count("EvalSpec.steps", self.steps))
        if self.name is not None and (not isinstance(self.name, str) or not self.name or "/" in self.name):
            raise StrategyError(f"EvalSpec.name is {self.name!r}; give a string without a slash, or None")
        _check_seconds("EvalSpec.start_delay_secs", self.start_delay_secs)
        _check_seconds("EvalSpec.throttle_secs", self.throttle_secs)
        _check_seconds("EvalSpec.wait_secs", self.wait_secs, above_zero=True)
