"""`TrainSpec` and `EvalSpec`: the two halves of `train_and_evaluate`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stratagem.classic.estimator.checks import INPUT_FN, check_seconds, count_or_none
from stratagem.classic.estimator.hooks import Hook, checked_hooks
from stratagem.errors import StrategyError
from stratagem.waist.user_functions import check_callable


@dataclass(frozen=True)
class TrainSpec:
    """What to train on, and how far.

    Attributes:
        input_fn: Makes the batches: see `Estimator.train`.
        max_steps: The global step to train to; `None`: to the end of the batches.
        hooks: Called along the training.
    """

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Sequence[Hook] = ()

    def __post_init__(self) -> None:
        check_callable("TrainSpec.input_fn", self.input_fn, INPUT_FN)
        object.__setattr__(self, "max_steps", count_or_none("TrainSpec.max_steps", self.max_steps))
        object.__setattr__(self, "hooks", checked_hooks("TrainSpec.hooks", self.hooks))


@dataclass(frozen=True)
class EvalSpec:
    """What to evaluate on, and how often.

    Attributes:
        input_fn: Makes the batches: see `Estimator.evaluate`.
        steps: How many batches each time; `None`: all of them.
        name: Tells several evaluations apart: summaries go to `eval_NAME`.
        start_delay_secs: An evaluator task begins so many seconds after its start, unless training is over before.
            Without `stratagem run` this is also the time that the chief has to come up, and to take away what an
            earlier training in the same directory has left to say that it was over.
        throttle_secs: Seconds from the start of one evaluation to that of the next, at least; the last checkpoint is
            evaluated at once.
        wait_secs: An evaluator task gives up after so many seconds without any sign of the training: no new
            checkpoint, no new summary.
    """

    input_fn: Callable[..., Any]
    steps: int | None = 100
    name: str | None = None
    start_delay_secs: float = 120
    throttle_secs: float = 600
    wait_secs: float = 7200

    def __post_init__(self) -> None:
        check_callable("EvalSpec.input_fn", self.input_fn, INPUT_FN)
        object.__setattr__(self, "steps", count_or_none("EvalSpec.steps", self.steps))
        if self.name is not None and (not isinstance(self.name, str) or not self.name or "/" in self.name):
            raise StrategyError(f"EvalSpec.name is {self.name!r}; give a text without a slash, or None")
        check_seconds("EvalSpec.start_delay_secs", self.start_delay_secs)
        check_seconds("EvalSpec.throttle_secs", self.throttle_secs)
        check_seconds("EvalSpec.wait_secs", self.wait_secs, above_zero=True)
