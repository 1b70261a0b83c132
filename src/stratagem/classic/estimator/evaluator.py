"""The evaluator task: it evaluates the checkpoints that it finds in the model's directory.

In order: the rules of when it evaluates (`EvaluationSchedule`, pure), the files by which it and the chief learn of each
other (`Marker`), and the loop that carries the rules out.
"""

import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from stratagem import environment
from stratagem.classic.estimator.checkpoint_reader import checkpoint_directory
from stratagem.classic.estimator.estimator import Estimator
from stratagem.classic.estimator.estimator_specs import EvalSpec
from stratagem.errors import DeadlineExceeded
from stratagem.keep import Snapshots
from stratagem.keep.disk import explain_errors, make_directory, new_file, write_all
from stratagem.runtime.stderr import show_logs

_log = logging.getLogger("stratagem")
_LOOK_SECONDS = 0.5
"""Seconds between two looks at the model's directory."""
_LOG_SECONDS = 30.0
"""Seconds between two log lines on what the evaluator waits for."""

# The rules.


@dataclass(frozen=True)
class Evaluate:
    """Evaluate the newest checkpoint now."""


@dataclass(frozen=True)
class Wait:
    """Look again after this many seconds at the latest."""

    seconds: float
    what_for: str


@dataclass(frozen=True)
class Stop:
    """Training is over and its last checkpoint is evaluated."""


@dataclass(frozen=True)
class GiveUp:
    """There has been no sign of the training for too long."""

    reason: str


Decision = Evaluate | Wait | Stop | GiveUp


@dataclass(frozen=True)
class DirectoryState:
    """The state of a model's directory, as an evaluator sees it.

    Attributes:
        latest: The step of the newest checkpoint, if there is one.
        is_finished: Whether the chief has said that training is over.
        fingerprint: Changes whenever the training writes anything.
    """

    latest: int | None = None
    is_finished: bool = False
    fingerprint: object = None


class EvaluationSchedule:
    """Decides when an evaluator evaluates, waits, stops or gives up. Pure: uses no clock and no file.

    Times are in seconds of any clock. The evaluator begins `start_delay` seconds after `start`, leaves at least
    `throttle` seconds between evaluations, and gives up after `patience` seconds without any sign of the training.

    Example:
        >>> schedule = EvaluationSchedule(0.0, start_delay=0, throttle=60, patience=600, max_steps=100)
        >>> schedule.decide(1.0, DirectoryState(latest=50))
        Evaluate()
        >>> schedule.record_evaluation(1.0, 50)
        >>> schedule.decide(2.0, DirectoryState(latest=70))
        Wait(seconds=59.0, what_for='the checkpoint of step 70 to be due (throttle_secs)')
        >>> schedule.decide(3.0, DirectoryState(latest=100))  # the last one does not wait
        Evaluate()
        >>> schedule.record_evaluation(3.0, 100)
        >>> schedule.decide(4.0, DirectoryState(latest=100))
        Stop()
    """

    def __init__(
        self, start: float, start_delay: float, throttle: float, patience: float, max_steps: int | None
    ) -> None:
        self._start_at = start + start_delay
        self._throttle = throttle
        self._patience = patience
        self._max_steps = max_steps
        self._due_at = self._start_at
        self._evaluated_step: int | None = None
        self._last_change: object = None
        self._changed_at = start

    def record_evaluation(self, now: float, step: int) -> None:
        """Note that an evaluation of this step began at this time."""
        self._evaluated_step = step
        self._due_at = now + self._throttle

    def decide(self, now: float, state: DirectoryState) -> Decision:
        """Decide what to do."""
        change = (state.latest, state.fingerprint)
        if change != self._last_change:
            self._last_change, self._changed_at = change, now
        latest, end = state.latest, self._max_steps
        is_over = state.is_finished or (latest is not None and end is not None and latest >= end)
        if latest is not None and latest != self._evaluated_step:
            if is_over or now >= self._due_at:
                return Evaluate()
            setting = "start_delay_secs" if now < self._start_at else "throttle_secs"
            return Wait(self._due_at - now, f"the checkpoint of step {latest} to be due ({setting})")
        if is_over:
            return Stop()
        seconds_left = self._changed_at + self._patience - now
        expected = "the first checkpoint" if latest is None else f"a checkpoint after that of step {latest}"
        if seconds_left <= 0:
            return GiveUp(f"waited for {expected}, and nothing was written for {self._patience:g} seconds")
        return Wait(seconds_left, expected)


# The files by which chief and evaluator learn of each other.


class Marker:
    """A small file in a model's directory, by which one task tells the others something.

    It carries the name of the run that `stratagem run` gives to all its tasks, so that a marker of an earlier run is
    not mistaken for one of this run.

    Attributes:
        has_run_name: Whether the run has a name to recognise the marker by.
    """

    def __init__(self, model_dir: Path, name: str) -> None:
        self._path = model_dir / name
        self._run = environment.run_id()
        self.has_run_name = self._run is not None

    def remove(self) -> None:
        """Remove the marker of an earlier run, if there is one."""
        with explain_errors(self._path, "removed"):
            self._path.unlink(missing_ok=True)

    def write(self, **fields: int) -> None:
        """Write the marker, with these fields in it."""
        content = json.dumps({"run": self._run, **fields}).encode()
        with explain_errors(self._path, "written"):
            make_directory(self._path.parent, durable=False)
            with new_file(self._path, durable=False) as file:
                write_all(file, memoryview(content))

    def exists(self) -> bool:
        """Return whether there is a marker of this run."""
        with explain_errors(self._path, "read"):
            try:
                content = json.loads(self._path.read_bytes())
            except (FileNotFoundError, ValueError):
                return False
        return isinstance(content, dict) and content.get("run") == self._run


def finished_marker(model_dir: Path) -> Marker:
    """Return the marker by which the chief says that training is over."""
    return Marker(model_dir, "training_finished.json")


def evaluator_marker(model_dir: Path) -> Marker:
    """Return the marker by which the evaluator says that it is there."""
    return Marker(model_dir, "evaluator_present.json")


# The loop.


def run_evaluator(
    estimator: Estimator, eval_spec: EvalSpec, max_steps: int | None
) -> dict[str, float] | None:
    """Evaluate the checkpoints of a training until it is over, or has reached `max_steps`; return the last results.

    Raises:
        DeadlineExceeded: There was no sign of the training for too long.
    """
    show_logs()  # in other tasks, the server does this
    model_dir = Path(estimator.model_dir)
    snapshots, finished = Snapshots(checkpoint_directory(model_dir)), finished_marker(model_dir)
    presence = evaluator_marker(model_dir)
    start = time.monotonic()
    schedule = EvaluationSchedule(
        start, eval_spec.start_delay_secs, eval_spec.throttle_secs, eval_spec.wait_secs, max_steps
    )
    results: dict[str, float] | None = None
    log_at = start
    while True:
        now = time.monotonic()
        if not presence.exists():
            presence.write()
        # A marker without a run's name may be of an earlier run; the chief removes that when it starts.
        is_trusted = finished.has_run_name or now >= start + eval_spec.start_delay_secs
        is_finished = (
            is_trusted and finished.exists()
        )  # before the checkpoints: the last is written before it
        decision = schedule.decide(
            now, DirectoryState(snapshots.latest(), is_finished, _fingerprint(model_dir))
        )
        match decision:
            case Evaluate():
                results = estimator.evaluate(eval_spec.input_fn, eval_spec.steps, name=eval_spec.name)
                schedule.record_evaluation(now, int(results["global_step"]))
            case Stop():
                return results
            case GiveUp(reason):
                raise DeadlineExceeded(
                    f"the evaluator {reason}. Is {model_dir} a directory that all tasks share, and does the chief run? If "
                    "training is only slow, raise wait_secs in EvalSpec"
                )
            case _:
                if now >= log_at:
                    _log.info("the evaluator waits for %s", decision.what_for)
                    log_at = now + _LOG_SECONDS
                time.sleep(min(decision.seconds, _LOOK_SECONDS))


def _fingerprint(model_dir: Path) -> object:
    """Return a value that changes whenever the chief writes a summary."""
    try:
        return frozenset((each.name, each.stat().st_size) for each in model_dir.iterdir() if each.is_file())
    except FileNotFoundError:  # the directory is not there yet, or a file went meanwhile
        return None
