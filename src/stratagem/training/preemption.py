"""What a training loop is told when its process is asked to end (SIGTERM): there is time to save, and no more.

Of those who train in step, only the chief saves, and all end with it: who is asked lets it know.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from stratagem.errors import StrategyError, WorkerLost
from stratagem.waist.home import PreemptionNotice

EXIT_CODE = 128 + signal.SIGTERM
"""What the shell shows for a process that was ended by SIGTERM: whoever started it knows that it was not done."""
_PAUSE = 0.1
"""Seconds from one look at what was asked to the next: a signal's handler may not call anybody."""


class Preempted:
    """True once this process has been asked to end and may stop training.

    Where several train in step, only the chief stops by itself, so that it is not left alone before it has saved: the
    others let it know, and go on until it has gone.

    Args:
        decides: Whether this process may stop by itself.
        notice: How to let the others know, if there are any that have to.
    """

    def __init__(self, decides: Callable[[], bool], notice: Callable[[], PreemptionNotice | None]) -> None:
        self._decides = decides
        self._notice = notice
        self._has_signal = False
        self._has_told = False
        self._is_alone = False
        self._is_over = False  # for the handler, which must not take the lock that is in an event
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look_around, name="stratagem-preemption", daemon=True)

    def __bool__(self) -> bool:
        return self.was_asked and self._decides()

    @property
    def was_asked(self) -> bool:
        """Whether this process was asked to end: by a signal, or by one that trains in step with it and was."""
        notice = self._notice()
        return self._has_signal or (notice is not None and notice.has_come)

    def ask(self, number: int, frame: FrameType | None) -> None:
        """The signal has come, or `_look_around` interrupts what this process waits for."""
        self._has_signal = True
        if self._is_alone and not self._is_over:
            self._is_over = True
            raise WorkerLost("the chief has left, as it was asked to; so does this worker")

    def tell(self) -> None:
        """Let the others know, once, if the signal has come to this process."""
        notice = self._notice()
        if self._has_signal and not self._has_told and notice is not None:
            self._has_told = True
            notice.send()

    def _look_around(self) -> None:
        """Do what takes calls to others, beside a main thread that trains, or waits for somebody."""
        while not self._over.wait(_PAUSE):
            self.tell()
            notice = self._notice()
            if self._has_signal and notice is not None and not self._decides() and notice.has_chief_left():
                self._is_alone = True
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
                return

    def begin(self) -> None:
        """Begin to look around."""
        self._watch.start()

    def end(self) -> None:
        """End that."""
        self._is_over = True
        self._over.set()
        self._watch.join()


@contextmanager
def preemption(
    decides: Callable[[], bool],
    finish: Callable[[], object],
    notice: Callable[[], PreemptionNotice | None] = lambda: None,
) -> Iterator[Preempted]:
    """A block in which SIGTERM is noted rather than obeyed; if it has come, the process ends with the block.

    A process that may not stop by itself ends with it when it has lost those whom it trains with.

    Args:
        decides: Whether this process may stop by itself.
        finish: Called before the process ends: finishes what is being written.
        notice: How to let those know who train in step with this process; `None`: there are none.

    Raises:
        StrategyError: This is not the main thread, where alone signals are heard.
        SystemExit: The signal has come.
    """
    if threading.current_thread() is not threading.main_thread():
        raise StrategyError("signals are heard in the main thread only: use preemption there")
    preempted = Preempted(decides, notice)
    before = signal.signal(signal.SIGTERM, preempted.ask)
    preempted.begin()
    is_lost = False
    try:
        try:
            yield preempted
        except WorkerLost:
            is_lost = preempted.was_asked and not decides()
            if not is_lost:
                raise
        finally:
            preempted.end()
        # Who goes by the chief, and came to the end of the training with it, is done; what comes next may need both.
        if is_lost or preempted:
            preempted.tell()
            finish()
            sys.exit(EXIT_CODE)
    finally:
        # Not before: Slurm sends a second signal to all that are left when the first has gone.
        signal.signal(signal.SIGTERM, before)
