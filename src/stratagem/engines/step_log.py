"""Lines on how a worker's training goes, in the form that users of parameter servers know."""

import logging
import time
from typing import Any

_log = logging.getLogger("stratagem")


class StepLog:
    """Writes a line every so many steps of this worker.

    Args:
        every: How many steps.
    """

    def __init__(self, every: int = 100) -> None:
        self._every = every
        self._steps = 0
        self._rows = 0
        self._since = time.monotonic()

    def count(self, rows: int, global_step: int, metrics: dict[str, Any]) -> None:
        """One more step, of so many examples."""
        if not self._steps:
            self._since = time.monotonic()  # the first step compiles
        self._steps += 1
        self._rows += rows
        if self._steps % self._every:
            return
        seconds = time.monotonic() - self._since
        if _log.isEnabledFor(logging.INFO) and "loss" in metrics:
            _log.info(
                "After %d training steps (%d global steps), loss on training batch is %g. (%.3f sec/batch, %.0f examples/sec)",
                self._steps,
                global_step,
                float(metrics["loss"]),
                seconds / self._every,
                self._rows / max(seconds, 1e-9),
            )
        self._rows, self._since = 0, time.monotonic()
