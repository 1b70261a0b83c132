"""The training loop of an Estimator: goes on from the last checkpoint, saves, reports, stops where it is told to."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stratagem import environment
from stratagem.classic.estimator.checks import count_or_none
from stratagem.classic.estimator.config import SAVE_SECONDS, RunConfig
from stratagem.classic.estimator.hooks import Hook
from stratagem.classic.estimator.inputs import Form, Input
from stratagem.classic.estimator.model import Model
from stratagem.classic.estimator.reports import TrainingSummaries
from stratagem.classic.estimator.variables import checkpoint_directory
from stratagem.errors import StrategyError
from stratagem.strategies import InputContext, Strategy
from stratagem.training import progress
from stratagem.training.checkpoints import Checkpointer
from stratagem.waist import TrainState

_log = logging.getLogger("stratagem")
_NOTE = "told where training begins and ends"
_SAVED = "written the last checkpoint"
OnSaved = Callable[[Callable[[], object]], object]
"""Called when a checkpoint is being written, but for the last one; with a function that waits until it is."""


@dataclass(frozen=True)
class Limits:
    """How far to train.

    Attributes:
        steps: So many steps from where it begins.
        max_steps: Or to this global step. With neither, to the end of the batches.
    """

    steps: int | None = None
    max_steps: int | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "max_steps"):
            object.__setattr__(self, name, count_or_none(name, getattr(self, name)))
        if self.steps is not None and self.max_steps is not None:
            raise StrategyError(
                f"steps is {self.steps} and max_steps is {self.max_steps}: give one of them. max_steps is a global "
                "step, steps counts from where this call begins"
            )

    def last(self, start: int) -> int | None:
        """The global step to stop at."""
        return self.max_steps if self.steps is None else start + self.steps


class SaveTimes:
    """When checkpoints are due; without a clock: whoever asks says what time it is.

    Args:
        config: Says how often.
        step: Where the training begins.
        now: When it does, in seconds of any clock.

    Example:
        >>> times = SaveTimes(RunConfig(save_checkpoints_steps=10), step=5, now=0.0)
        >>> [times.is_due(step, now=1.0) for step in (14, 15, 16)]
        [False, True, False]
    """

    def __init__(self, config: RunConfig, step: int, now: float) -> None:
        self._steps = config.save_checkpoints_steps
        self._seconds = SAVE_SECONDS if config.save_checkpoints_secs is None else config.save_checkpoints_secs
        self._step = step
        self._time = now

    def is_due(self, step: int, now: float) -> bool:
        """Whether to save at this step; the next is counted from there."""
        passed = (
            now - self._time >= self._seconds if self._steps is None else step - self._step >= self._steps
        )
        if passed:
            self._step, self._time = step, now
        return passed


class Training:
    """One call of `train`.

    Args:
        config: How it is run.
        strategy: Where.
        model_dir: For checkpoints and summaries.
        build: Makes the model for a form of batches.
    """

    def __init__(
        self, config: RunConfig, strategy: Strategy, model_dir: Path, build: Callable[[Form], Model]
    ) -> None:
        self._config = config
        self._strategy = strategy
        self._model_dir = model_dir
        self._build = build

    def run(
        self, source: Input, limits: Limits, hooks: Sequence[Hook] = (), on_saved: OnSaved | None = None
    ) -> int:
        """Train; the global step at the end."""
        config, strategy = self._config, self._strategy
        form, batches = self._open(source)
        model = self._build(form)
        state = strategy.init(model.initial(config.seed), model.spec.optimizer, seed=config.seed)
        directory = checkpoint_directory(self._model_dir)
        with Checkpointer(directory, config.keep_checkpoint_max) as checkpoints:
            state = checkpoints.restore(like=state) or state
            start = int(state.step)
            began, last = _agreed(state, limits, start)
            if source.wants_step and began:
                _, batches = self._open(source, began)
            is_over = last is not None and start >= last
            if is_over:
                _log.info("nothing to train: the model is at step %d, and %d is wanted", start, last)
                strategy.feed.rest()
                checkpoints.save(state)  # servers may have got there while the chief was away
                step = start
            else:
                for hook in hooks:
                    hook.begin(start)
                with _preemption(checkpoints) as preempted:
                    step = self._steps(state, model, batches, checkpoints, last, hooks, on_saved, preempted)
        self._wait_for_chief(state)
        for hook in hooks if not is_over else ():
            hook.end(step)
        return step

    def _wait_for_chief(self, state: TrainState) -> None:
        """Wait until the last checkpoint is written, so that every worker finds it."""
        served, workers = state.recipe.home.servers, self._strategy.workers
        if served is None:
            if workers.count > 1:
                workers.gather(np.zeros(1, np.uint8))
        elif served.is_chief:
            served.post_notice(_SAVED, b"")
        else:
            served.wait_for_notice(_SAVED)

    def _open(self, source: Input, global_step: int = 0) -> tuple[Form, Any]:
        """The form of the batches, and the batches dealt out: the same to all workers, or each worker's own."""
        opened: list[tuple[Form, Iterator[Any]]] = []

        def own(context: InputContext) -> Iterator[Any]:
            opened.append(source.open(context, global_step))
            return opened[0][1]

        if source.wants_context:
            dealt = self._strategy.distribute_from_function(own)
        else:
            opened.append(source.open(None, global_step))
            dealt = self._strategy.distribute(opened[0][1])
        return opened[0][0], dealt

    def _steps(
        self,
        state: TrainState,
        model: Model,
        batches: Any,
        checkpoints: Checkpointer,
        last: int | None,
        hooks: Sequence[Hook],
        on_saved: OnSaved | None,
        preempted: object,
    ) -> int:
        config, strategy = self._config, self._strategy
        train = strategy.train_step(model.loss_fn())
        is_served = state.recipe.home.servers is not None
        step = int(state.step)
        times = SaveTimes(config, step, time.monotonic())
        every = config.log_step_count_steps
        shown = progress(
            batches,
            resumed_at=step,
            every=every or 1,
            strategy=strategy,
            display="off" if every is None else "lines",
        )
        with ExitStack() as stack:
            summaries = TrainingSummaries(self._model_dir, config.save_summary_steps, strategy, step)
            stack.callback(summaries.close)
            for batch in shown:
                state, metrics = train(state, batch)
                step = int(metrics["global_step"]) if is_served else step + 1
                shown.tell({**metrics, "global_step": step})
                summaries.step(step, metrics)
                for hook in hooks:
                    hook.after_step(step, metrics)
                if preempted or (last is not None and step >= last):
                    break
                if times.is_due(step, time.monotonic()):
                    checkpoints.save(state)
                    if on_saved is not None:
                        on_saved(checkpoints.wait)
        strategy.feed.rest()  # whoever is not there yet shall not wait for this worker
        checkpoints.save(state)
        return step


def _agreed(state: TrainState, limits: Limits, start: int) -> tuple[int, int | None]:
    """Where the training began, for its data, and where it ends.

    Parameter servers may be further when a worker comes, perhaps again: it hears from the chief, or from what the
    chief has noted before it was lost, so that all have the same data and stop at the same step.
    """
    served = state.recipe.home.servers
    own = start, limits.last(start)
    if served is None:
        return own
    comes_again = environment.generation() > 0 and start > 0
    if not served.is_chief or comes_again:
        note = served.wait_for_notice(_NOTE)
        if note is not None:
            began, last = json.loads(note)
            return began, last
    if served.is_chief:
        served.post_notice(_NOTE, json.dumps(own).encode())
    return own


def _preemption(checkpoints: Checkpointer) -> AbstractContextManager[object]:
    """Time to save when this process is asked to end; signals are heard in the main thread only."""
    if threading.current_thread() is threading.main_thread():
        return checkpoints.preemption()
    return nullcontext(False)
