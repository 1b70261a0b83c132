"""Preemption: a training loop whose process is asked to end (SIGTERM) has time to save before it ends.

Of the workers in step, only the chief saves, and all end with it: a worker that is asked to end tells the chief.
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
"""The exit code of a process that SIGTERM ended: it tells whoever started the process that it had not finished."""
_POLL_SECONDS = 0.1
"""Seconds between two checks for the signal: its handler must not make calls to other processes."""


class Preempted:
    """True once this process has been asked to end and may stop training.

    Of several workers in step, only the chief stops by itself, so that nobody leaves it before it has saved: the others
    tell the chief, and go on until it has ended.
    """

    def __init__(self, decides: Callable[[], bool], notice: Callable[[], PreemptionNotice | None]) -> None:
        self._decides = decides
        self._notice = notice
        self._has_signal = False
        self._has_notified = False
        self._is_alone = False
        self._is_over = False  # for the signal handler, which must not take the lock of an event
        self._end_event = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="stratagem-preemption", daemon=True)

    def __bool__(self) -> bool:
        return self.was_asked and self._decides()

    @property
    def was_asked(self) -> bool:
        """True if a signal, or a worker in step that got one, has asked this process to end."""
        notice = self._notice()
        return self._has_signal or (notice is not None and notice.has_come)

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal. It may also come from `_poll`, to interrupt a wait of the main thread."""
        self._has_signal = True
        if self._is_alone and not self._is_over:
            self._is_over = True
            raise WorkerLost("the chief has ended, as it was asked to; so this worker ends too")

    def tell(self) -> None:
        """Tell the others, once, if the signal has come to this process."""
        notice = self._notice()
        if self._has_signal and not self._has_notified and notice is not None:
            self._has_notified = True
            notice.send()

    def _poll(self) -> None:
        """Make the calls to other processes, while the main thread trains or waits."""
        while not self._end_event.wait(_POLL_SECONDS):
            self.tell()
            notice = self._notice()
            if self._has_signal and notice is not None and not self._decides() and notice.has_chief_left():
                self._is_alone = True
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
                return

    def begin(self) -> None:
        """Start polling."""
        self._thread.start()

    def end(self) -> None:
        """Stop polling."""
        self._is_over = True
        self._end_event.set()
        self._thread.join()


@contextmanager
def preemption(
    decides: Callable[[], bool],
    finish: Callable[[], object],
    notice: Callable[[], PreemptionNotice | None] = lambda: None,
) -> Iterator[Preempted]:
    """Return a block in which SIGTERM is noted rather than obeyed; if it has come, the process ends with the block.

    A process that may not stop by itself ends with the block when it has lost the workers that it trains with.

    Args:
        decides: Returns whether this process may stop by itself.
        finish: Called before the process ends, to finish writing.
        notice: Returns the way to tell the workers in step with this process; `None` if there are none.

    Raises:
        StrategyError: This is not the main thread, which alone can handle signals.
        SystemExit: The signal has come.
    """
    if threading.current_thread() is not threading.main_thread():
        raise StrategyError("only the main thread can handle signals: use preemption there")
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
        # A worker that waits for the chief, and finished training with it, is done: what follows may need both.
        if is_lost or preempted:
            preempted.tell()
            finish()
            sys.exit(EXIT_CODE)
    finally:
        # Not earlier: Slurm sends a second signal to the remaining processes when the first has ended.
        signal.signal(signal.SIGTERM, before)
