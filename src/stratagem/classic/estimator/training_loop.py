"""The training loop of an Estimator: it goes on from the last checkpoint, saves, reports, and stops at its limit."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stratagem import environment
from stratagem.classic.estimator.checkpoint_reader import checkpoint_directory
from stratagem.classic.estimator.estimator_specs import SAVE_SECONDS, Hook, RunConfig, check_optional_count
from stratagem.classic.estimator.input_function import BatchForm, InputFunction
from stratagem.classic.estimator.model_function import Model
from stratagem.errors import MissingExtra, StrategyError
from stratagem.strategies import InputContext, Strategy
from stratagem.training import SummaryWriter, progress
from stratagem.training.checkpoints import Checkpointer
from stratagem.training.progress_display import scalar_metrics
from stratagem.waist import TrainState

_log = logging.getLogger("stratagem")
# The names of notices from the chief.
_LIMITS_NOTICE = "told where training begins and ends"
_SAVED_NOTICE = "written the last checkpoint"
OnCheckpoint = Callable[[Callable[[], object]], object]
"""Called while a checkpoint other than the last is being written, with a function that waits for that."""


@dataclass(frozen=True)
class StepLimits:
    """The end of a training.

    Attributes:
        steps: The number of steps from where training begins.
        max_steps: The global step to train to, instead. With neither, to the end of the batches.
    """

    steps: int | None = None
    max_steps: int | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "max_steps"):
            object.__setattr__(self, name, check_optional_count(name, getattr(self, name)))
        if self.steps is not None and self.max_steps is not None:
            raise StrategyError(
                f"steps is {self.steps} and max_steps is {self.max_steps}: give one of them. max_steps is a global "
                "step, steps counts from where this call begins"
            )

    def last_step(self, start: int) -> int | None:
        """Return the global step to stop at, if there is one."""
        return self.max_steps if self.steps is None else start + self.steps


class CheckpointTimes:
    """Decides when checkpoints are due. Pure: callers say what time it is, in seconds of any clock.

    Example:
        >>> times = CheckpointTimes(RunConfig(save_checkpoints_steps=10), step=5, now=0.0)
        >>> [times.is_due(step, now=1.0) for step in (14, 15, 16)]
        [False, True, False]
    """

    def __init__(self, config: RunConfig, step: int, now: float) -> None:
        self._steps = config.save_checkpoints_steps
        self._seconds = SAVE_SECONDS if config.save_checkpoints_secs is None else config.save_checkpoints_secs
        self._step = step
        self._time = now

    def is_due(self, step: int, now: float) -> bool:
        """Return whether to save at this step; if so, count to the next checkpoint from there."""
        is_due = (
            now - self._time >= self._seconds if self._steps is None else step - self._step >= self._steps
        )
        if is_due:
            self._step, self._time = step, now
        return is_due


class TrainingSummaries:
    """Writes the metrics and the speed of a training every `every` steps, if this process is the chief."""

    def __init__(self, directory: Path, every: int | None, strategy: Strategy, step: int) -> None:
        is_writer = every is not None and strategy.is_chief
        self._writer = open_summaries(directory, strategy, step) if is_writer else None
        self._every = every
        self._step = step
        self._time = time.perf_counter()

    def record(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write the metrics of a step, if it is due."""
        if self._writer is None or self._every is None or step - self._step < self._every:
            return
        now = time.perf_counter()
        for name, value in scalar_metrics(metrics).items():
            if name != "global_step":
                self._writer.scalar(name, value, step)
        self._writer.scalar("global_step/sec", (step - self._step) / max(now - self._time, 1e-9), step)
        self._step, self._time = step, now

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


def open_summaries(
    directory: Path, strategy: Strategy | None = None, step: int | None = None
) -> SummaryWriter | None:
    """Open a writer of summaries, which writes on the chief and the evaluator only.

    Return `None`, with a warning, where tensorboardX is not installed.
    """
    try:
        return SummaryWriter(directory, strategy, resumed_at=step)
    except MissingExtra as error:
        _log.warning("there will be no summaries: %s", error)
        return None


class Training:
    """One call of `train`, with a function that makes the model for a form of batches."""

    def __init__(
        self,
        config: RunConfig,
        strategy: Strategy,
        model_dir: Path,
        make_model: Callable[[BatchForm], Model],
    ) -> None:
        self._config = config
        self._strategy = strategy
        self._model_dir = model_dir
        self._make_model = make_model

    def run(
        self,
        source: InputFunction,
        limits: StepLimits,
        hooks: Sequence[Hook] = (),
        on_checkpoint: OnCheckpoint | None = None,
    ) -> int:
        """Train; return the global step at the end."""
        config, strategy = self._config, self._strategy
        form, batches = self._open(source)
        model = self._make_model(form)
        state = strategy.init(model.initial_params(config.seed), model.spec.optimizer, seed=config.seed)
        directory = checkpoint_directory(self._model_dir)
        with Checkpointer(directory, config.keep_checkpoint_max) as checkpoints:
            state = checkpoints.restore(like=state) or state
            start = int(state.step)
            first, last = _agree_on_steps(state, limits, start)
            if source.wants_step and first:
                _, batches = self._open(source, first)
            is_over = last is not None and start >= last
            if is_over:
                _log.info("nothing to train: the model is at step %d, and the limit is step %d", start, last)
                strategy.feed.rest()
                checkpoints.save(state)  # the servers may have reached it while the chief was away
                step = start
            else:
                for hook in hooks:
                    hook.begin(start)
                with _preemption(checkpoints) as preempted:
                    step = self._steps(
                        state, model, batches, checkpoints, last, hooks, on_checkpoint, preempted
                    )
        self._wait_for_chief(state)
        for hook in hooks if not is_over else ():
            hook.end(step)
        return step

    def _wait_for_chief(self, state: TrainState) -> None:
        """Wait until the chief has written the last checkpoint, so that every worker can read it."""
        served, workers = state.recipe.home.servers, self._strategy.workers
        if served is None:
            if workers.count > 1:
                workers.gather(np.zeros(1, np.uint8))
        elif served.is_chief:
            served.post_notice(_SAVED_NOTICE, b"")
        else:
            served.wait_for_notice(_SAVED_NOTICE)

    def _open(self, source: InputFunction, global_step: int = 0) -> tuple[BatchForm, Any]:
        """Return the form of the batches, and this worker's batches: its share of all, or those it makes itself."""
        if not source.wants_context:
            form, batches = source.open(None, global_step)
            return form, self._strategy.distribute(batches)
        forms: list[BatchForm] = []

        def own_batches(context: InputContext) -> Iterator[Any]:
            form, batches = source.open(context, global_step)
            forms.append(form)
            return batches

        distributed = self._strategy.distribute_from_function(own_batches)
        return forms[0], distributed

    def _steps(
        self,
        state: TrainState,
        model: Model,
        batches: Any,
        checkpoints: Checkpointer,
        last: int | None,
        hooks: Sequence[Hook],
        on_checkpoint: OnCheckpoint | None,
        preempted: object,
    ) -> int:
        config, strategy = self._config, self._strategy
        train = strategy.train_step(model.loss_fn())
        is_served = state.recipe.home.servers is not None
        step = int(state.step)
        times = CheckpointTimes(config, step, time.monotonic())
        every = config.log_step_count_steps
        steps = progress(
            batches,
            resumed_at=step,
            every=every or 1,
            strategy=strategy,
            display="off" if every is None else "lines",
        )
        with ExitStack() as stack:
            summaries = TrainingSummaries(self._model_dir, config.save_summary_steps, strategy, step)
            stack.callback(summaries.close)
            for batch in steps:
                state, metrics = train(state, batch)
                step = int(metrics["global_step"]) if is_served else step + 1
                steps.tell({**metrics, "global_step": step})
                summaries.record(step, metrics)
                for hook in hooks:
                    hook.after_step(step, metrics)
                if preempted or (last is not None and step >= last):
                    break
                if times.is_due(step, time.monotonic()):
                    checkpoints.save(state)
                    if on_checkpoint is not None:
                        on_checkpoint(checkpoints.wait)
        strategy.feed.rest()  # so that workers that lag behind do not wait for this one
        checkpoints.save(state)
        return step


def _agree_on_steps(state: TrainState, limits: StepLimits, start: int) -> tuple[int, int | None]:
    """Return the step at which all workers' data begin, and the step at which all stop.

    Parameter servers may have moved on when a worker starts, or starts again. So the chief leaves a notice for the
    others, and for itself, should it be lost and started again.
    """
    served = state.recipe.home.servers
    own = start, limits.last_step(start)
    if served is None:
        return own
    is_restart = environment.generation() > 0 and start > 0
    if not served.is_chief or is_restart:
        note = served.wait_for_notice(_LIMITS_NOTICE)
        if note is not None:
            first, last = json.loads(note)
            return first, last
    if served.is_chief:
        served.post_notice(_LIMITS_NOTICE, json.dumps(own).encode())
    return own


def _preemption(checkpoints: Checkpointer) -> AbstractContextManager[object]:
    """Leave time to save when this process is asked to end; only the main thread can handle signals."""
    if threading.current_thread() is threading.main_thread():
        return checkpoints.preemption()
    return nullcontext(False)
