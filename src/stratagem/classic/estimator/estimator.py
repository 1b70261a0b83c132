"""`Estimator`: a model function and its directory; trains, evaluates and predicts, under any strategy."""

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from stratagem.classic.estimator import measuring
from stratagem.classic.estimator.checks import count_or_none
from stratagem.classic.estimator.config import Distribute, RunConfig, made
from stratagem.classic.estimator.hooks import Hook, checked_hooks
from stratagem.classic.estimator.inputs import Form, Input
from stratagem.classic.estimator.loop import Limits, OnSaved, Training
from stratagem.classic.estimator.model import Model, build, check_model_fn
from stratagem.classic.estimator.reports import write_evaluation
from stratagem.classic.estimator.spec import ModeKeys
from stratagem.classic.estimator.variables import (
    check_there,
    checkpoint_directory,
    load_params,
    open_checkpoint,
    read_variable,
    variable_names,
)
from stratagem.cluster import resolve_cluster
from stratagem.devices import list_devices
from stratagem.errors import KeepError, StrategyError
from stratagem.keep import Snapshots, write_file
from stratagem.strategies import OneDeviceStrategy, Strategy
from stratagem.training.one_voice import speaks

_log = logging.getLogger("stratagem")
InputFn = Callable[..., Any]


class Estimator:
    """A model that trains, evaluates and predicts, and lives in a directory.

    The model function is called with the *form* of the first batch, shapes and dtypes in place of arrays, and returns
    pure functions: see `EstimatorSpec`. All but `features` may be left out of its arguments.

    An input function returns an iterable of batches: tuples of features and labels, each an array or a pytree of
    arrays with the rows first. It may ask for `input_context`, an `InputContext`: then each worker makes batches of its
    own, and nothing is shared out; otherwise every worker makes the same global batches, and gets its share of each.
    To train it may ask for `global_step`, the step that training goes on from, to begin its data there; such a function
    may be called twice. Otherwise the data begin anew with every call of `train`.

    Everything goes by way of checkpoints in `model_dir`: each call of `train` goes on from the newest, `evaluate` and
    `predict` read one. The chief writes them, whatever the strategy; they fit all others.

    Args:
        model_fn: `model_fn(features, labels, mode, params, config) -> EstimatorSpec`.
        model_dir: For checkpoints and summaries; or `config.model_dir`; or a new temporary directory.
        config: How it is run.
        params: Handed to the model function: hyperparameters.

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
        self._model_dir = _directory(model_dir, self._config.model_dir)
        self._check_labels: Callable[[Any], object] | None = None
        self._strategies: dict[str, Strategy] = {}
        self._models: dict[Any, Model] = {}

    @property
    def model_dir(self) -> str:
        """Where checkpoints and summaries are."""
        return str(self._model_dir)

    @property
    def config(self) -> RunConfig:
        """How it is run."""
        return self._config

    @property
    def params(self) -> Any:
        """What the model function is handed."""
        return self._params

    # Training.

    def train(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        max_steps: int | None = None,
        hooks: Sequence[Hook] | None = None,
    ) -> "Estimator":
        """Train, from the newest checkpoint or from the beginning; there is a checkpoint at the end.

        On a cluster every worker calls this, and it returns when the chief has written that checkpoint. Under parameter servers the chief's last checkpoint may lack updates
        that other workers make after it has come to the end of its batches: give `max_steps`, at which all stop. SIGTERM
        leaves time to save.

        Args:
            input_fn: Makes the batches.
            steps: So many steps from here; all workers together.
            max_steps: Or to this global step. With neither, to the end of the batches.
            hooks: Called along the training.

        Raises:
            StrategyError: The model or the arguments cannot be meant.
            DataError: The batches are not what they should be.
            KeepError: The directory has checkpoints of another model, or cannot be written.
        """
        self.train_to(input_fn, Limits(steps, max_steps), checked_hooks("hooks", hooks))
        return self

    def train_to(
        self,
        input_fn: InputFn,
        limits: Limits,
        hooks: Sequence[Hook] = (),
        on_saved: OnSaved | None = None,
    ) -> int:
        """The same, for those who look on: called after each checkpoint; the global step at the end."""
        source = self._input(input_fn, ModeKeys.TRAIN)
        strategy = self._train_strategy()

        def modelled(form: Form) -> Model:
            return self._model(form, ModeKeys.TRAIN)

        return Training(self._config, strategy, self._model_dir, modelled).run(
            source, limits, hooks, on_saved
        )

    # Looking at what was trained.

    def evaluate(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        checkpoint_path: str | PathLike[str] | None = None,
        name: str | None = None,
    ) -> dict[str, float]:
        """The loss and the metrics, means over all rows of the batches, and the `global_step` of the model.

        They are also written as summaries, to the directory `eval` or `eval_NAME` in `model_dir`.

        Args:
            input_fn: Makes the batches.
            steps: How many of them; all by default.
            checkpoint_path: Of which checkpoint; the newest by default.
            name: Tells several evaluations apart.

        Raises:
            KeepError: There is no checkpoint yet, or it is of another model.
        """
        batch_count = count_or_none("steps", steps)
        source = self._input(input_fn, ModeKeys.EVAL)
        model, step, params, batches = self._loaded(source, ModeKeys.EVAL, checkpoint_path)
        metrics = measuring.evaluate(self._eval_strategy(), model, params, batches, batch_count)
        write_evaluation(self._model_dir, name, metrics, step)
        told = ", ".join(f"{metric} {value:.4g}" for metric, value in metrics.items())
        _log.info("evaluation at step %d: %s", step, told)
        return {**metrics, "global_step": step}

    def predict(
        self,
        input_fn: InputFn,
        predict_keys: Sequence[str] | str | None = None,
        checkpoint_path: str | PathLike[str] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """What the model makes of each row, one after the other.

        Args:
            input_fn: Makes the batches: features, or tuples of features and labels, which are not looked at.
            predict_keys: Which of the predictions; all by default.
            checkpoint_path: Of which checkpoint; the newest by default.

        Raises:
            KeepError: There is no checkpoint yet, or it is of another model.
        """
        keys = [predict_keys] if isinstance(predict_keys, str) else predict_keys
        source = self._input(input_fn, ModeKeys.PREDICT)
        model, _, params, batches = self._loaded(source, ModeKeys.PREDICT, checkpoint_path)
        return measuring.predict(self._eval_strategy(), model, params, batches, keys)

    def _loaded(
        self, source: Input, mode: ModeKeys, path: str | PathLike[str] | None
    ) -> tuple[Model, int, Any, Iterator[Any]]:
        """The model, the step and the parameters of a checkpoint, and the batches to look at it with."""
        if path is None:
            check_there(self._model_dir)
        form, batches = source.open()
        model = self._model(form, mode)
        # Read last, and at once: whoever trains meanwhile removes old checkpoints.
        step, params = load_params(self._model_dir, path, model.initial(self._config.seed))
        return model, step, params, batches

    def _input(self, input_fn: InputFn, mode: ModeKeys) -> Input:
        return Input(input_fn, mode, self._check_labels)

    # What is kept.

    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint; `None` if there is none."""
        cuts = Snapshots(checkpoint_directory(self._model_dir))
        step = cuts.latest()
        return None if step is None else str(cuts.path(step))

    def get_variable_names(self) -> list[str]:
        """The names of all variables in the newest checkpoint: `global_step`, parameters, the optimizer's state.

        Raises:
            KeepError: There is no checkpoint yet.
        """
        return ["global_step", *variable_names(open_checkpoint(self._model_dir))]

    def get_variable_value(self, name: str) -> Any:
        """The value of a variable in the newest checkpoint.

        Raises:
            KeepError: There is no such variable, or no checkpoint yet.
        """
        return read_variable(open_checkpoint(self._model_dir), name)

    def export(self, path: str | PathLike[str], checkpoint_path: str | PathLike[str] | None = None) -> None:
        """Write the parameters to one safetensors file, to serve the model elsewhere. Only the chief does.

        Args:
            path: The file; one that is there already is replaced.
            checkpoint_path: Of which checkpoint; the newest by default.

        Raises:
            KeepError: There is no checkpoint yet, or the file cannot be written.
        """
        if not speaks(self._strategies.get("train_distribute")):
            return
        cut = open_checkpoint(self._model_dir, checkpoint_path)
        params = {
            name: cut.read(stored)
            for name, stored in variable_names(cut).items()
            if stored.startswith("params/")
        }
        if not params:
            raise KeepError(
                f"the checkpoint of step {cut.step} has no parameters: there is nothing to export"
            )
        write_file(path, params)

    # Where.

    def _train_strategy(self) -> Strategy:
        config = resolve_cluster()
        if self._config.train_distribute is None and config is not None:
            others = sum(config.cluster.num_tasks(job) for job in config.cluster.jobs if job != "evaluator")
            if others > 1:
                raise StrategyError(
                    f"{config.source} tells of a cluster of {others} tasks, but RunConfig has no train_distribute, so that "
                    "each would train a model of its own: give sg.MultiWorkerMirroredStrategy or "
                    "sg.ParameterServerStrategy"
                )
        return self._strategy("train_distribute", self._config.train_distribute)

    def _eval_strategy(self) -> Strategy:
        config = self._config
        if config.eval_distribute is not None and config.eval_distribute == config.train_distribute:
            # One that several processes share is made once in each.
            return self._strategy("train_distribute", config.train_distribute)
        return self._strategy("eval_distribute", config.eval_distribute)

    def _strategy(self, name: str, distribute: Distribute | None) -> Strategy:
        if name not in self._strategies:
            self._strategies[name] = made(_one_device if distribute is None else distribute, name)
        return self._strategies[name]

    def _model(self, form: Form, mode: ModeKeys) -> Model:
        """The model for a form of batches; kept, since what it has compiled is worth keeping."""
        key = (mode, form.key)
        if key not in self._models:
            spec = build(self._model_fn, form, mode, self._params, self._config)
            self._models[key] = Model(spec, form)
        return self._models[key]


def _one_device() -> Strategy:
    accelerators = [each.name for each in list_devices() if each.spec.device_type != "CPU"]
    return OneDeviceStrategy(accelerators[0] if accelerators else "/cpu:0")


def _directory(given: str | PathLike[str] | None, configured: str | PathLike[str] | None) -> Path:
    if given is not None and configured is not None and Path(given) != Path(configured):
        raise StrategyError(
            f"model_dir is {str(given)!r}, and {str(configured)!r} in RunConfig: give it once, or the same twice"
        )
    chosen = configured if given is None else given
    if chosen is not None:
        return Path(chosen).absolute()
    temporary = Path(tempfile.mkdtemp(prefix="stratagem-model-"))
    _log.warning("no model_dir is given: checkpoints go to the temporary directory %s", temporary)
    return temporary
