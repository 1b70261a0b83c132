"""`train_and_evaluate`: every task makes the same call, and each plays its role."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from stratagem.classic.estimator.estimator import Estimator
from stratagem.classic.estimator.estimator_specs import EvalSpec, TrainSpec
from stratagem.classic.estimator.evaluator import evaluator_marker, finished_marker, run_evaluator
from stratagem.classic.estimator.training_loop import StepLimits
from stratagem.cluster import ClusterConfig, resolve_cluster
from stratagem.errors import StrategyError
from stratagem.waist.user_functions import describe_type

_log = logging.getLogger("stratagem")


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> dict[str, float] | None:
    """Train a model, and evaluate it along the way and at the end.

    Without a cluster, this process trains, and evaluates whenever a checkpoint is written, but not more often than
    `throttle_secs`. On a cluster every task makes the same call: the chief and the workers train; a `ps` task serves; an
    `evaluator` task evaluates the checkpoints that it finds in `model_dir`, and stops after the last one. On a cluster
    without an evaluator nothing is evaluated, as in TensorFlow; the chief's log says so.

    Args:
        estimator: The model.
        train_spec: The data to train on, and how far to train.
        eval_spec: The data to evaluate on, and how often to evaluate.

    Returns:
        The last results on an evaluator and without a cluster; `None` on the chief and the workers of a cluster.

    Raises:
        DeadlineExceeded: On an evaluator: there was no sign of the training for too long.

    Example:
        >>> config = RunConfig(train_distribute=MultiWorkerMirroredStrategy)
        >>> estimator = Estimator(model_fn, "model", config)
        >>> train_and_evaluate(estimator, TrainSpec(train_input, max_steps=1000), EvalSpec(test_input))
    """
    arguments = {Estimator: estimator, TrainSpec: train_spec, EvalSpec: eval_spec}
    if not all(isinstance(value, expected) for expected, value in arguments.items()):
        raise StrategyError(
            "train_and_evaluate takes an sg.Estimator, an sg.TrainSpec and an sg.EvalSpec, not "
            f"{' and '.join(map(describe_type, arguments.values()))}"
        )
    cluster = resolve_cluster()
    if cluster is None:
        return _train_and_evaluate_alone(estimator, train_spec, eval_spec)
    if cluster.job_name == "evaluator":
        return run_evaluator(estimator, eval_spec, train_spec.max_steps)
    _train_in_cluster(estimator, train_spec, cluster)
    return None


def _train_and_evaluate_alone(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> dict[str, float]:
    results: dict[str, float] = {}
    due_at = time.monotonic()

    def evaluate() -> None:
        nonlocal results, due_at
        due_at = time.monotonic() + eval_spec.throttle_secs
        results = estimator.evaluate(eval_spec.input_fn, eval_spec.steps, name=eval_spec.name)

    def on_checkpoint(wait: Callable[[], object]) -> None:
        if time.monotonic() >= due_at:
            wait()
            evaluate()

    limits = StepLimits(max_steps=train_spec.max_steps)
    step = estimator.train_to(train_spec.input_fn, limits, train_spec.hooks, on_checkpoint)
    if results.get("global_step") != step:
        evaluate()
    return results


def _train_in_cluster(estimator: Estimator, train_spec: TrainSpec, cluster: ClusterConfig) -> None:
    model_dir = Path(estimator.model_dir)
    finished, evaluator = finished_marker(model_dir), evaluator_marker(model_dir)
    if cluster.is_chief:
        finished.remove()
        evaluator.remove()  # an evaluator that is there writes it again
    limits = StepLimits(max_steps=train_spec.max_steps)
    step = estimator.train_to(train_spec.input_fn, limits, train_spec.hooks)
    if cluster.is_chief:
        finished.write(global_step=step)
        if not evaluator.exists():
            _log.warning(
                "train_and_evaluate has trained to step %d, and nobody has evaluated: no evaluator task was seen at %s. On a "
                "cluster only an evaluator evaluates: add one (stratagem run --evaluator), or call "
                "estimator.evaluate(input_fn) after the training",
                step,
                model_dir,
            )
