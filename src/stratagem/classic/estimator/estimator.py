"""`Estimator`: a model function and its directory. It trains, evaluates and predicts under any strategy."""

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from stratagem.classic.estimator.checkpoint_reader import (
    check_trained,
    checkpoint_directory,
    load_params,
    open_checkpoint,
    read_all_params,
    read_variable,
    variable_names,
)
from stratagem.classic.estimator.estimator_specs import (
    Distribute,
    Hook,
    ModeKeys,
    RunConfig,
    check_hooks,
    check_optional_count,
    make_strategy,
)
from stratagem.classic.estimator.input_function import BatchForm, InputFunction
from stratagem.classic.estimator.model_function import (
    Model,
    call_model_fn,
    check_model_fn,
    evaluate_model,
    predict_rows,
)
from stratagem.classic.estimator.training_loop import OnCheckpoint, StepLimits, Training, open_summaries
from stratagem.cluster import resolve_cluster
from stratagem.devices import list_devices
from stratagem.errors import KeepError, StrategyError
from stratagem.keep import Snapshots, write_file
from stratagem.strategies import OneDeviceStrategy, Strategy
from stratagem.training.reporter import is_reporter

_log = logging.getLogger("stratagem")
InputFn = Callable[..., Any]


class Estimator:
    """A model that trains, evaluates and predicts, and is kept in a directory.

    The model function is called with the *form* of the first batch, shapes and dtypes in place of arrays, and returns
    pure functions: see `EstimatorSpec`. It may leave out any of its arguments except `features`.

    An input function returns an iterable of batches: tuples of features and labels, each an array or a pytree of
    arrays with the rows first. Every worker makes the same global batches and gets its share of each. If the function
    asks for `input_context`, an `InputContext`, each worker makes its own batches instead, and they are not shared out.
    A function to train may ask for `global_step`, the step that training goes on from, to begin its data there; such a
    function may be called twice. Otherwise the data begin anew with every call of `train`.

    Checkpoints in `model_dir` connect all calls: each call of `train` goes on from the newest, and `evaluate` and
    `predict` read one. The chief writes them. A checkpoint fits every strategy.

    Args:
        model_fn: `model_fn(features, labels, mode, params, config) -> EstimatorSpec`.
        model_dir: The directory of checkpoints and summaries. By default `config.model_dir`, or a new temporary
            directory.
        config: How the Estimator is run.
        params: Hyperparameters, which are passed to the model function.

    Example:
        >>> def model_fn(features, labels, mode, params):
        ...     def predict(weights, features):
        ...         return features @ weights["w"]
        ...     def loss(weights, features, labels):
        ...         return jnp.mean((predict(weights, features) - labels) ** 2)
        ...     return EstimatorSpec(
        ...         init=lambda rng, features: {"w": jnp.zeros(features.shape[1])},
        ...         loss=loss, predictions=predict, optimizer=optax.sgd(params["rate"]),
        ...     )
        >>> estimator = Estimator(model_fn, "model", params={"rate": 0.1})
        >>> estimator.train(lambda: batches, max_steps=100)
        >>> estimator.evaluate(lambda: batches)["loss"]
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: Any = None,
    ) -> None:
        check_model_fn(model_fn, params)
        if config is not None and not isinstance(config, RunConfig):
            raise StrategyError(f"config is {config!r}; give an sg.RunConfig")
        self._model_fn = model_fn
        self._config = RunConfig() if config is None else config
        self._params = params
        self._model_dir = _choose_directory(model_dir, self._config.model_dir)
        self._check_labels: Callable[[Any], object] | None = None
        self._strategies: dict[str, Strategy] = {}
        self._models: dict[Any, Model] = {}

    @property
    def model_dir(self) -> str:
        """The directory of checkpoints and summaries."""
        return str(self._model_dir)

    @property
    def config(self) -> RunConfig:
        """The settings of the Estimator."""
        return self._config

    @property
    def params(self) -> Any:
        """The hyperparameters that the model function gets."""
        return self._params

    # Training.

    def train(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        max_steps: int | None = None,
        hooks: Sequence[Hook] | None = None,
    ) -> "Estimator":
        """Train from the newest checkpoint, or from the beginning, and write a checkpoint at the end.

        On a cluster every worker calls this, and it returns when the chief has written that checkpoint. Under parameter
        servers the chief's last checkpoint may lack updates that other workers make after the chief has come to the end
        of its batches: give `max_steps`, at which all stop. SIGTERM leaves time to save.

        Args:
            input_fn: Makes the batches.
            steps: The number of steps to train from here, by all workers together.
            max_steps: The global step to train to, instead. With neither, train to the end of the batches.
            hooks: Called during the training.

        Raises:
            StrategyError: The model function or an argument is not valid.
            DataError: The batches are not valid.
            KeepError: The directory has checkpoints of another model, or cannot be written.
        """
        self.train_to(input_fn, StepLimits(steps, max_steps), check_hooks("hooks", hooks))
        return self

    def train_to(
        self,
        input_fn: InputFn,
        limits: StepLimits,
        hooks: Sequence[Hook] = (),
        on_checkpoint: OnCheckpoint | None = None,
    ) -> int:
        """Train as `train` does, calling a function at each checkpoint; return the global step at the end."""
        source = self._input(input_fn, ModeKeys.TRAIN)
        strategy = self._train_strategy()

        def make_model(form: BatchForm) -> Model:
            return self._model(form, ModeKeys.TRAIN)

        training = Training(self._config, strategy, self._model_dir, make_model)
        return training.run(source, limits, hooks, on_checkpoint)

    # Evaluation and prediction.

    def evaluate(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        checkpoint_path: str | PathLike[str] | None = None,
        name: str | None = None,
    ) -> dict[str, float]:
        """Return the loss and the metrics, means over all rows of the batches, and the model's `global_step`.

        They are also written as summaries, to the directory `eval` or `eval_NAME` in `model_dir`.

        Args:
            input_fn: Makes the batches.
            steps: The number of batches. By default, all of them.
            checkpoint_path: The checkpoint to evaluate. By default, the newest.
            name: Distinguishes several evaluations.

        Raises:
            KeepError: There is no checkpoint yet, or it is of another model.
        """
        batch_count = check_optional_count("steps", steps)
        source = self._input(input_fn, ModeKeys.EVAL)
        model, step, params, batches = self._load(source, ModeKeys.EVAL, checkpoint_path)
        metrics = evaluate_model(self._eval_strategy(), model, params, batches, batch_count)
        writer = open_summaries(self._model_dir / ("eval" if name is None else f"eval_{name}"))
        if writer is not None:
            with writer:
                for metric, value in metrics.items():
                    writer.scalar(metric, value, step)
        listing = ", ".join(f"{metric} {value:.4g}" for metric, value in metrics.items())
        _log.info("evaluation at step %d: %s", step, listing)
        return {**metrics, "global_step": step}

    def predict(
        self,
        input_fn: InputFn,
        predict_keys: Sequence[str] | str | None = None,
        checkpoint_path: str | PathLike[str] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield the predictions for each row.

        Args:
            input_fn: Makes the batches: features, or tuples of features and labels, which are ignored.
            predict_keys: The predictions to return. By default, all.
            checkpoint_path: The checkpoint to predict with. By default, the newest.

        Raises:
            KeepError: There is no checkpoint yet, or it is of another model.
        """
        keys = [predict_keys] if isinstance(predict_keys, str) else predict_keys
        source = self._input(input_fn, ModeKeys.PREDICT)
        model, _, params, batches = self._load(source, ModeKeys.PREDICT, checkpoint_path)
        return predict_rows(self._eval_strategy(), model, params, batches, keys)

    def _load(
        self, source: InputFunction, mode: ModeKeys, path: str | PathLike[str] | None
    ) -> tuple[Model, int, Any, Iterator[Any]]:
        """Return the model, a checkpoint's step and parameters, and the batches."""
        if path is None:
            check_trained(self._model_dir)
        form, batches = source.open()
        model = self._model(form, mode)
        # Read last, and at once: a training elsewhere may remove old checkpoints.
        step, params = load_params(self._model_dir, path, model.initial_params(self._config.seed))
        return model, step, params, batches

    def _input(self, input_fn: InputFn, mode: ModeKeys) -> InputFunction:
        return InputFunction(input_fn, mode, self._check_labels)

    # Checkpoints.

    def latest_checkpoint(self) -> str | None:
        """Return the path of the newest checkpoint, or `None` if there is none."""
        snapshots = Snapshots(checkpoint_directory(self._model_dir))
        step = snapshots.latest()
        return None if step is None else str(snapshots.path(step))

    def get_variable_names(self) -> list[str]:
        """Return the names of all variables in the newest checkpoint: `global_step`, parameters, the optimizer's state.

        Raises:
            KeepError: There is no checkpoint yet.
        """
        return ["global_step", *variable_names(open_checkpoint(self._model_dir))]

    def get_variable_value(self, name: str) -> Any:
        """Return the value of a variable in the newest checkpoint.

        Raises:
            KeepError: There is no such variable, or no checkpoint yet.
        """
        return read_variable(open_checkpoint(self._model_dir), name)

    def export(self, path: str | PathLike[str], checkpoint_path: str | PathLike[str] | None = None) -> None:
        """Write the parameters to one safetensors file, to serve the model elsewhere. Only the chief writes.

        Args:
            path: The file, which is replaced if it exists.
            checkpoint_path: The checkpoint to export. By default, the newest.

        Raises:
            KeepError: There is no checkpoint yet, or the file cannot be written.
        """
        if not is_reporter(self._strategies.get("train_distribute")):
            return
        snapshot = open_checkpoint(self._model_dir, checkpoint_path)
        params = read_all_params(snapshot)
        if not params:
            raise KeepError(
                f"the checkpoint of step {snapshot.step} has no parameters: there is nothing to export"
            )
        write_file(path, params)

    # Strategies and models.

    def _train_strategy(self) -> Strategy:
        config = resolve_cluster()
        if self._config.train_distribute is None and config is not None:
            others = sum(config.cluster.num_tasks(job) for job in config.cluster.jobs if job != "evaluator")
            if others > 1:
                raise StrategyError(
                    f"{config.source} describes a cluster of {others} tasks, but RunConfig has no train_distribute, so "
                    "each would train a model of its own: give sg.MultiWorkerMirroredStrategy or "
                    "sg.ParameterServerStrategy"
                )
        return self._strategy("train_distribute", self._config.train_distribute)

    def _eval_strategy(self) -> Strategy:
        config = self._config
        if config.eval_distribute is not None and config.eval_distribute == config.train_distribute:
            # Each process makes a strategy that several processes share only once.
            return self._strategy("train_distribute", config.train_distribute)
        return self._strategy("eval_distribute", config.eval_distribute)

    def _strategy(self, name: str, distribute: Distribute | None) -> Strategy:
        if name not in self._strategies:
            self._strategies[name] = make_strategy(_one_device if distribute is None else distribute, name)
        return self._strategies[name]

    def _model(self, form: BatchForm, mode: ModeKeys) -> Model:
        """Return the model for a form of batches; models are cached for their compiled functions."""
        key = (mode, form.key)
        if key not in self._models:
            spec = call_model_fn(self._model_fn, form, mode, self._params, self._config)
            self._models[key] = Model(spec, form)
        return self._models[key]


def _one_device() -> Strategy:
    accelerators = [each.name for each in list_devices() if each.spec.device_type != "CPU"]
    return OneDeviceStrategy(accelerators[0] if accelerators else "/cpu:0")


def _choose_directory(argument: str | PathLike[str] | None, configured: str | PathLike[str] | None) -> Path:
    if argument is not None and configured is not None and Path(argument) != Path(configured):
        raise StrategyError(
            f"model_dir is {str(argument)!r}, and {str(configured)!r} in RunConfig: give it once, or the same twice"
        )
    directory = configured if argument is None else argument
    if directory is not None:
        return Path(directory).absolute()
    temporary = Path(tempfile.mkdtemp(prefix="stratagem-model-"))
    _log.warning("no model_dir is given: checkpoints go to the temporary directory %s", temporary)
    return temporary
