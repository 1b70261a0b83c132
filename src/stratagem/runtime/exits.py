"""The end of a process: callbacks for a normal exit, and the work of daemon threads that the exit has to wait for.

A process ends normally if its main thread comes to its end without an uncaught exception (Ctrl-C is one) and without
`sys.exit` of anything but success. `os._exit`, a signal or a crash runs no callback. Errors in other threads do not count:
the process went on after them. In an interactive session errors at the prompt do not count either. Python 3.12.0 to 3.12.2
start no thread at that time: a callback that needs one fails there, and the log says so.

Python before 3.14 ends a daemon thread when it comes back to Python while the interpreter is taken down: it unwinds the
thread's stack. XLA's frames do not let that through, and the process is aborted, whatever its exit status was to be. So a
daemon thread does its work in XLA `with DAEMON_WORK`: the end of the process lets no new work begin, and waits for work
that has begun.
"""

import atexit
import concurrent.futures.thread  # noqa: F401  imported before we register: see `_install`
import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn

_log = logging.getLogger("stratagem")
_SECONDS: Final = 2.0
"""How long the end of the process waits for daemon work; work that waits for a lost worker may never be over."""
Callback = Callable[[], object]


class _Exits:
    """The callbacks of this process, and what is known of how it ends."""

    def __init__(self) -> None:
        self._callbacks: dict[int, Callback] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._process: int | None = None
        self._status: Any = None
        self._known_error: BaseException | None = None

    def add(self, callback: Callback) -> Callable[[], None]:
        """Add a callback; return a function that removes it."""
        with self._lock:
            if self._process != os.getpid():  # the first here; a forked child does not speak for its parent
                self._install(anew=self._process is None)
                self._callbacks.clear()
            number = next(self._numbers)
            self._callbacks[number] = callback

        def cancel() -> None:
            with self._lock:
                self._callbacks.pop(number, None)

        return cancel

    def _install(self, *, anew: bool) -> None:
        self._process = os.getpid()
        self._known_error = _last_error()
        if not anew:
            return
        # Python runs these newest first, before it waits for threads: sockets, threads and JAX still work then, and
        # executors too, which close by the same means. In `atexit` functions, from 3.12 on, no thread can be started.
        threading._register_atexit(self._run)  # type: ignore[attr-defined]
        original = sys.exit

        def watched_exit(status: Any = None, /) -> NoReturn:
            if threading.current_thread() is threading.main_thread():  # elsewhere it ends a thread
                self._status = status
            original(status)

        # Python tells nobody the status that it ends with, and a failed process must not be taken for a finished one.
        sys.exit = watched_exit

    def _run(self) -> None:
        if os.getpid() != self._process or not self._ends_normally():
            return
        while True:
            with self._lock:
                if not self._callbacks:
                    return
                _, callback = self._callbacks.popitem()
            try:
                callback()
            except Exception:  # noqa: BLE001  a callback may raise anything
                # Raised further, it would keep Python from waiting for the user's threads.
                _log.exception("while this process ended: %r failed", callback)

    def _ends_normally(self) -> bool:
        is_interactive = hasattr(sys, "ps1")
        last = None if is_interactive else _last_error()
        return self._status in (None, 0) and (last is None or last is self._known_error)


def _last_error() -> BaseException | None:
    """Return the uncaught exception that Python has printed, whatever has become of `sys.excepthook`."""
    error: BaseException | None = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error


_exits = _Exits()


def at_normal_exit(callback: Callback) -> Callable[[], None]:
    """Call a function when this process ends normally, in the main thread, newest first, once.

    Args:
        callback: The function. What it raises is logged. It may use threads, sockets and JAX; it should not take long, since
            the process does not end before.

    Returns:
        A function that cancels the callback; it may be called at any time, and twice.

    Example:
        >>> cancel = at_normal_exit(lambda: print("finished"))
        >>> cancel()
    """
    return _exits.add(callback)


class _DaemonWork:
    """Counts the work of this process's daemon threads."""

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
                # Usually for ever, as the interpreter goes. But a function of the user's, which is called at the end as
                # well, may wait for this very thread. Other work that is over meanwhile is no reason to begin.
                self._changed.wait_for(lambda: not self._is_ending, _SECONDS)
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._count -= 1
            if self._is_ending:
                self._changed.notify_all()

    def settle(self, seconds: float = _SECONDS) -> bool:
        """Let no work begin from now on, and wait for work that has begun; return whether all was over in time."""
        with self._changed:
            self._is_ending = True
            return self._changed.wait_for(lambda: not self._count, seconds)


DAEMON_WORK: Final = _DaemonWork()
