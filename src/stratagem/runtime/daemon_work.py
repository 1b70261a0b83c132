"""What threads that do not keep the process from ending have under way when it ends.

Python before 3.14 ends such a thread when it comes back to Python while the interpreter is taken down: it unwinds the
thread's stack. XLA's frames do not let that through, and the process is aborted, whatever it has said of its end. So what a
daemon thread does in XLA, it does `with DAEMON_WORK`, and the end of the process lets none begin and waits for those that have.
"""

import atexit
import os
import threading
from typing import Final

_PATIENCE: Final = 2.0
"""Seconds that the end of the process waits for what is under way; one that waits for a lost worker may never be over."""


class _DaemonWork:
    """Counts what is under way in this process."""

    def __init__(self) -> None:
        self._is_installed = False
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._is_ending = False

    def __enter__(self) -> None:
        with self._changed:
            if not self._is_installed:
                self._is_installed = True
                atexit.register(self.settle)
                os.register_at_fork(after_in_child=self._reset)  # the threads are the parent's alone
            if self._is_ending:
                # Mostly for ever: the interpreter goes. Not so if a function of the user's, which is called at the
                # end as well, waits for this very thread. What else is over meanwhile is no reason to begin.
                self._changed.wait_for(lambda: not self._is_ending, _PATIENCE)
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._count -= 1
            if self._is_ending:
                self._changed.notify_all()

    def settle(self, seconds: float = _PATIENCE) -> bool:
        """Let nothing begin from now on, and wait for what is under way; whether all of it was over in time."""
        with self._changed:
            self._is_ending = True
            return self._changed.wait_for(lambda: not self._count, seconds)


DAEMON_WORK: Final = _DaemonWork()
