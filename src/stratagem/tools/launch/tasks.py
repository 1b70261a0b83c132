"""The tasks of a local job: their names, their ports, how they end, and which of several failures to read first."""

import signal
import socket
from collections import deque
from dataclasses import dataclass

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_HUNG_UP = 128 + signal.SIGHUP
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM

MOST_LINES = 200
LINES_WITHOUT_TRACEBACK = 20
"""Number of lines to show of a task that died without a traceback."""
FRESH_SECONDS = 5.0
"""If a task ends longer than this after its last traceback, it had handled that error and ended for another reason."""
_TRACEBACK = b"Traceback (most recent call last):"
_CHAINED = (b"During handling of the above exception", b"The above exception was the direct cause")


@dataclass(frozen=True, order=True)
class TaskName:
    """A task of a job: `worker:1`."""

    job: str
    index: int

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"


def describe_exit(code: int) -> str:
    """Describe in words how a task ended; a negative code is a signal, as in `subprocess`.

    Example:
        >>> describe_exit(3), describe_exit(-15)
        ('exit code 3', 'signal SIGTERM')
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    hint = (
        " (killed from outside; the kernel does this when memory runs out)" if -code == signal.SIGKILL else ""
    )
    return f"signal {name}{hint}"


class ReservedPort:
    """A port that belongs to one task for the whole run, however often the task is restarted.

    The launcher binds a socket per task and never listens on it. That keeps all other programs from the port, and connections
    are refused unless the task itself listens. Each start of the task gets a second socket on the same port (SO_REUSEPORT), of
    which the launcher keeps no copy.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._reservation = _bind(host, 0)
        self._host, self._port = self._reservation.getsockname()

    @property
    def address(self) -> str:
        """The address, as in TF_CONFIG."""
        return f"{self._host}:{self._port}"

    def socket_for_task(self) -> socket.socket:
        """Return a bound socket to hand to the task, which alone listens on it; close it afterwards."""
        return _bind(self._host, self._port)

    def close(self) -> None:
        """Release the port."""
        self._reservation.close()


def _bind(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
    except BaseException:
        sock.close()
        raise
    return sock


class StderrTail:
    """The end of a task's output to stderr: its last traceback, or else its last lines."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=MOST_LINES)
        self._is_chained = False
        self.traceback_began: float | None = None

    def feed(self, line: bytes, now: float) -> None:
        """Take one line, which may begin a traceback."""
        if line.startswith(_TRACEBACK) and not self._is_chained:
            self._lines.clear()
            self.traceback_began = now
        if line.strip():
            self._is_chained = line.startswith(_CHAINED)
        self._lines.append(line)

    def failed_at(self, now: float) -> float:
        """Return when the task that has ended now failed.

        A task that raised may take its time to exit, and its neighbours may notice and exit before it. So a failure is dated by
        the beginning of its traceback, unless the task went on afterwards.
        """
        if self.traceback_began is not None and now - self.traceback_began > FRESH_SECONDS:
            self.traceback_began = None
        return now if self.traceback_began is None else self.traceback_began

    def text(self) -> str:
        """Return the traceback, or the last lines."""
        count = MOST_LINES if self.traceback_began is not None else LINES_WITHOUT_TRACEBACK
        return b"\n".join(list(self._lines)[-count:]).decode(errors="replace").rstrip()


@dataclass(frozen=True)
class TaskFailure:
    """The failure of a task."""

    task: TaskName
    code: int  # its exit code; negative for a signal
    time: float  # when its traceback began, or when it exited without one
    text: str  # the end of its output to stderr


def failure_report(failures: list[TaskFailure]) -> str:
    """Return the first failure with its traceback, then the names of the others, which may only follow from it.

    Example:
        >>> print(failure_report([TaskFailure(TaskName("worker", 1), 1, 0.0, "ValueError: no")]))
        worker:1 failed, with exit code 1:
          ValueError: no
    """
    first, *others = sorted(failures, key=lambda failure: failure.time)
    lines = [f"{first.task} failed{' first' if others else ''}, with {describe_exit(first.code)}:"]
    lines += [f"  {line}".rstrip() for line in (first.text or "(it wrote nothing to stderr)").splitlines()]
    lines += [f"then {other.task} failed, with {describe_exit(other.code)}" for other in others]
    return "\n".join(lines)
