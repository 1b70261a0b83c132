"""`RunConfig`: where an Estimator trains and evaluates, and how often it writes."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any, Final, TypeAlias

from stratagem.classic.estimator.checks import check_seconds, count, count_or_none
from stratagem.devices.whole_numbers import whole_number
from stratagem.engines.tensorflow_names import RefusesTensorFlowNames
from stratagem.errors import StrategyError
from stratagem.strategies import Strategy

Distribute: TypeAlias = Strategy | Callable[[], Strategy]
"""A strategy, or what makes one: its class, or a function without arguments."""
SAVE_SECONDS: Final = 600.0
"""From checkpoint to checkpoint, where nothing else is said."""


@dataclass(frozen=True)
class RunConfig(RefusesTensorFlowNames):
    """How an Estimator is run.

    `train_distribute` and `eval_distribute` may be a strategy, or what makes one: a class
    (`sg.MultiWorkerMirroredStrategy`) or a function without arguments. It is made when it is first needed, and once if
    both are the same. On an evaluator task a strategy of several processes is one of that process alone.

    Attributes:
        train_distribute: Where to train; `None`: on one device, the first accelerator or the CPU.
        eval_distribute: Where to evaluate and predict, likewise.
        model_dir: For checkpoints and summaries; one that all tasks of a cluster share.
        save_checkpoints_steps: Steps from checkpoint to checkpoint.
        save_checkpoints_secs: Or seconds; 600 if neither is given. There is always one at the end.
        keep_checkpoint_max: How many of the newest stay.
        save_summary_steps: Steps from summary to summary; `None` for none.
        log_step_count_steps: A line every so many steps; `None` for none.
        seed: What initial parameters and the `rng` of losses are drawn from.

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
            given = getattr(self, name)
            if given is not None and not isinstance(given, Strategy) and not callable(given):
                raise StrategyError(
                    f"{name} is {given!r}; give a strategy, its class, or a function that makes one"
                )
        for name in ("save_checkpoints_steps", "save_summary_steps", "log_step_count_steps"):
            object.__setattr__(self, name, count_or_none(name, getattr(self, name)))
        if self.save_checkpoints_secs is not None:
            check_seconds("save_checkpoints_secs", self.save_checkpoints_secs, above_zero=True)
            if self.save_checkpoints_steps is not None:
                raise StrategyError(
                    f"save_checkpoints_steps is {self.save_checkpoints_steps} and save_checkpoints_secs is "
                    f"{self.save_checkpoints_secs}: give one of them"
                )
        object.__setattr__(
            self, "keep_checkpoint_max", count("keep_checkpoint_max", self.keep_checkpoint_max)
        )
        seed = whole_number(self.seed)
        if seed is None:
            raise StrategyError(f"seed is {self.seed!r}; give a whole number")
        object.__setattr__(self, "seed", seed)

    def replace(self, **changes: Any) -> "RunConfig":
        """The same with some fields changed."""
        return dataclasses.replace(self, **changes)


def made(distribute: Distribute, name: str) -> Strategy:
    """The strategy, made if it is not yet.

    Raises:
        StrategyError: What should make one makes something else.
    """
    strategy = distribute if isinstance(distribute, Strategy) else distribute()
    if not isinstance(strategy, Strategy):
        raise StrategyError(f"{name} made {strategy!r}; it is to make a strategy")
    return strategy
