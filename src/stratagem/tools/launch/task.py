"""Names of tasks as the launcher shows them, and what ends mean: theirs, and the launcher's own."""

import signal
from dataclasses import dataclass

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_HUNG_UP = 128 + signal.SIGHUP
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True, order=True)
class TaskName:
    """A task of a job: `worker:1`."""

    job: str
    index: int

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"


def describe_exit(code: int) -> str:
    """How a task ended, in words; a negative code is a signal, as in `subprocess`.

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
