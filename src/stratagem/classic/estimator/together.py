"""`train_and_evaluate`: the same call on every task, alone and on a cluster; each does its part."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from stratagem.classic.estimator.estimator import Estimator
from stratagem.classic.estimator.loop import Limits
from stratagem.classic.estimator.signs import evaluator_sign, finish_sign
from stratagem.classic.estimator.specs import EvalSpec, TrainSpec
from stratagem.classic.estimator.variables import checkpoint_directory
from stratagem.classic.estimator.watching import Evaluate, GiveUp, Seen, Stop, Watch
from stratagem.cluster import ClusterConfig, resolve_cluster
from stratagem.errors import DeadlineExceeded, StrategyError
from stratagem.keep import Snapshots
from stratagem.runtime.stderr import show_logs
from stratagem.waist.user_functions import describe_type

_log = logging.getLogger("stratagem")
_LOOK_SECONDS = 0.5
"""From look to look into the directory of the model."""
_SAY_SECONDS = 30.0
"""From line to line on what is waited for."""


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> dict[str, float] | None:
    """Train a model, and evaluate it along the way and at the end.

    Without a cluster, this process trains, and evaluates whenever a checkpoint is written, not more often than
    `throttle_secs`. On a cluster every task makes the same call: the chief and the workers train; a `ps` task serves; an
    `evaluator` task evaluates the checkpoints that it finds in `model_dir`, and stops when it has evaluated the last one.
    Without such a task nothing is evaluated on a cluster, as in TensorFlow; the chief's log says so.

    Args:
        estimator: The model.
        train_spec: What to train on, and how far.
        eval_spec: What to evaluate on, and how often.

    Returns:
        The last results, where this process has evaluated: on an evaluator, and without a cluster. On the chief and the
        workers of a cluster `None`.

    Raises:
        DeadlineExceeded: On an evaluator: there was no sign of the training for too long.

    Example:
        >>> config = RunConfig(train_distribute=MultiWorkerMirroredStrategy)
        >>> estimator = Estimator(model_fn, "model", config)
        >>> train_and_evaluate(estimator, TrainSpec(train_input, max_steps=1000), EvalSpec(test_input))
    """
    given = {Estimator: estimator, TrainSpec: train_spec, EvalSpec: eval_spec}
    if not all(isinstance(value, wanted) for wanted, value in given.items()):
        raise StrategyError(
            "train_and_evaluate takes an sg.Estimator, an sg.TrainSpec and an sg.EvalSpec, not "
            f"{' and '.join(map(describe_type, given.values()))}"
        )
    cluster = resolve_cluster()
    if cluster is None:
        return _alone(estimator, train_spec, eval_spec)
    if cluster.job_name == "evaluator":
        return _watch(estimator, train_spec, eval_spec)
    _take_part(estimator, train_spec, cluster)
    return None


def _alone(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> dict[str, float]:
    results: dict[str, float] = {}
    due_at = time.monotonic()

    def evaluate() -> None:
        nonlocal results, due_at
        due_at = time.monotonic() + eval_spec.throttle_secs
        results = estimator.evaluate(eval_spec.input_fn, eval_spec.steps, name=eval_spec.name)

    def on_saved(wait: Callable[[], object]) -> None:
        if time.monotonic() >= due_at:
            wait()
            evaluate()

    limits = Limits(max_steps=train_spec.max_steps)
    step = estimator.train_to(train_spec.input_fn, limits, train_spec.hooks, on_saved)
    if results.get("global_step") != step:
        evaluate()
    return results


def _take_part(estimator: Estimator, train_spec: TrainSpec, cluster: ClusterConfig) -> None:
    model_dir = Path(estimator.model_dir)
    sign, evaluator = finish_sign(model_dir), evaluator_sign(model_dir)
    if cluster.is_chief:
        sign.clear()
        evaluator.clear()  # one that is there says so again
    step = estimator.train_to(train_spec.input_fn, Limits(max_steps=train_spec.max_steps), train_spec.hooks)
    if cluster.is_chief:
        sign.leave(global_step=step)
        if not evaluator.is_there():
            _log.warning(
                "train_and_evaluate has trained to step %d, and nobody has evaluated: no evaluator task was seen at %s. On a "
                "cluster only an evaluator evaluates: add one (stratagem run --evaluator), or call "
                "estimator.evaluate(input_fn) after the training",
                step,
                model_dir,
            )


def _watch(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> dict[str, float] | None:
    show_logs()  # a task with a server does that with it
    model_dir = Path(estimator.model_dir)
    cuts, sign = Snapshots(checkpoint_directory(model_dir)), finish_sign(model_dir)
    presence = evaluator_sign(model_dir)
    began = time.monotonic()
    watch = Watch(
        began, eval_spec.start_delay_secs, eval_spec.throttle_secs, eval_spec.wait_secs, train_spec.max_steps
    )
    results: dict[str, float] | None = None
    say_at = began
    while True:
        now = time.monotonic()
        if not presence.is_there():
            presence.leave()
        # Another run may have left the sign; the chief takes it away when it comes up.
        is_trusted = sign.is_named or now >= began + eval_spec.start_delay_secs
        is_finished = is_trusted and sign.is_there()  # before the checkpoints: the last is written before it
        decision = watch.decide(now, Seen(cuts.latest(), is_finished, _signs(model_dir)))
        match decision:
            case Evaluate():
                results = estimator.evaluate(eval_spec.input_fn, eval_spec.steps, name=eval_spec.name)
                watch.evaluated(now, int(results["global_step"]))
            case Stop():
                return results
            case GiveUp(why):
                raise DeadlineExceeded(
                    f"the evaluator {why}. Is {model_dir} a directory that all tasks share, and does the chief run? If "
                    "training only is slow, raise wait_secs in EvalSpec"
                )
            case _:
                if now >= say_at:
                    _log.info("the evaluator waits for %s", decision.what_for)
                    say_at = now + _SAY_SECONDS
                time.sleep(min(decision.seconds, _LOOK_SECONDS))


def _signs(model_dir: Path) -> object:
    """Changes whenever the chief writes a summary."""
    try:
        return frozenset((each.name, each.stat().st_size) for each in model_dir.iterdir() if each.is_file())
    except FileNotFoundError:  # not there yet, or a file went while it was looked at
        return None
