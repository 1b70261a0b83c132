"""`Hook`: what a user has called along a training."""

from collections.abc import Iterable, Mapping
from typing import Any

from stratagem.errors import StrategyError


class Hook:
    """Called along a training; derive from it and fill in what you want. Every worker calls its own.

    Example:
        >>> class Losses(Hook):
        ...     def after_step(self, step, metrics):
        ...         losses.append(float(metrics["loss"]))
    """

    def begin(self, step: int) -> None:
        """Training begins, or goes on, at this step."""

    def after_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """A step is done.

        Args:
            step: The global step now.
            metrics: What the step told: `loss` and others; to read one waits for the device.
        """

    def end(self, step: int) -> None:
        """Training has ended at this step, without an error; the last checkpoint is written."""


def checked_hooks(name: str, hooks: object) -> tuple[Hook, ...]:
    """The hooks that a user gives, `None` for none; refuses what is no list of them."""
    if hooks is None:
        return ()
    given = tuple(hooks) if isinstance(hooks, Iterable) else (hooks,)
    if not isinstance(hooks, Iterable) or not all(isinstance(each, Hook) for each in given):
        raise StrategyError(
            f"{name} is {hooks!r:.80}; give a list of objects whose classes derive from sg.estimator.Hook"
        )
    return given
