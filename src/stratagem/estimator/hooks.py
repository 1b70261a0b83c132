"""`Hook`: what a user has called along a training."""

from collections.abc import Mapping
from typing import Any


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
