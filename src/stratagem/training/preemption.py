"""What a training loop is told when its process is asked to end (SIGTERM): there is time to save, and no more."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from stratagem.errors import StrategyError, WorkerLost

EXIT_CODE = 128 + signal.SIGTERM
"""What the shell shows for a process that was ended by SIGTERM: whoever started it knows that it was not done."""


class Preempted:
    """True once this process has been asked to end and may stop training.

    Where several train in step, only the chief stops by itself, so that it is not left alone before it has saved: the
    others go on until it has gone.
    """

    def __init__(self, decides: Callable[[], bool]) -> None:
        self.was_asked = False
        self._decides = decides

    def __bool__(self) -> bool:
        return self.was_asked and self._decides()

    def ask(self, number: int, frame: FrameType | None) -> None:
        """The signal has come."""
        self.was_asked = True


@contextmanager
def preemption(decides: Callable[[], bool], finish: Callable[[], object]) -> Iterator[Preempted]:
    """A block in which SIGTERM is noted rather than obeyed; if it has come, the process ends with the block.

    Args:
        decides: Whether this process may stop by itself.
        finish: Called before the process ends: finishes what is being written.

    Raises:
        StrategyError: This is not the main thread, where alone signals are heard.
        SystemExit: The signal has come.
    """
    if threading.current_thread() is not threading.main_thread():
        raise StrategyError("signals are heard in the main thread only: use preemption there")
    preempted = Preempted(decides)
    before = signal.signal(signal.SIGTERM, preempted.ask)
    try:
        yield preempted
    except WorkerLost:
        if not preempted.was_asked or decides():
            raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if preempted.was_asked:
        finish()
        sys.exit(EXIT_CODE)
