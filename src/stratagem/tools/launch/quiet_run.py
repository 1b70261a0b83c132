"""Commands and jobs that other commands run quietly, with a deadline; nothing of them outlives this process.

Each has a keeper, as the tasks of a job have: see `keeper`.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stratagem import environment
from stratagem.errors import DeadlineExceeded, LaunchError
from stratagem.tools.launch import keeper
from stratagem.tools.launch.tasks import EXIT_INTERRUPTED, EXIT_TERMINATED, describe_exit

LEAVE_SECONDS = 1.8
"""Time for a launcher that is told to stop to end its own tasks, before all of it is killed."""
_LAST_LINES = 20


def run_job_quietly(words: Sequence[str], directory: Path, seconds: float) -> None:
    """Run `stratagem run` with these words; the directory is for its log and temporary files.

    Raises:
        LaunchError: The job failed or did not end in time; the message has the end of its output.
    """
    log = directory / "log"
    # Files that a killed launcher cannot remove are removed with the directory.
    environ = {**environment.current(), "TMPDIR": str(directory)}
    try:
        code = run_with_deadline(
            [sys.executable, "-P", "-m", "stratagem", "run", *words], environ, log, seconds
        )
    except DeadlineExceeded as error:
        raise LaunchError(f"{error}\n{failure_text(log)}") from error
    if code != 0:
        raise LaunchError(f"it ended with {describe_exit(code)}\n{failure_text(log)}")


def run_with_deadline(command: Sequence[str], environ: Mapping[str, str], log: Path, seconds: float) -> int:
    """Run a command quietly, with its output in `log`. Return its exit code, negative for a signal.

    Raises:
        DeadlineExceeded: The command did not end in time.
        KeyboardInterrupt: Ctrl-C; the command has been ended.
    """
    ours, theirs = socket.socketpair()
    with ours, log.open("wb") as output:
        with theirs:
            keeper_command = (sys.executable, "-I", "-S", keeper.__file__, str(theirs.fileno()), "-1")
            process = subprocess.Popen(
                [*keeper_command, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environ),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # the terminal's Ctrl-C reaches only this process, which passes it on
            )
        try:
            status = _receive_status(ours, seconds)
            if status is None:
                raise DeadlineExceeded(f"it did not end within {seconds:g} s")
            return os.waitstatus_to_exitcode(int(status)) if status else -9
        except BaseException:
            _end(ours)
            raise
        finally:
            ours.close()
            process.wait()


def failure_text(log: Path) -> str:
    """Return the launcher's own report of a failure, which includes the failed task's error; else the log's last lines."""
    lines = log.read_text(errors="replace").splitlines()
    reports = [number for number, line in enumerate(lines) if line.startswith("stratagem: ")]
    return "\n".join(lines[reports[0] :] if reports else lines[-_LAST_LINES:])


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end this process by way of its `finally` clauses, with their exit codes."""

    def leave(*_: Any) -> None:
        sys.exit(EXIT_TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(control: socket.socket) -> None:
    """Ask the command to end, then kill it if it does not."""
    with contextlib.suppress(OSError):  # it has ended by itself
        control.sendall(keeper.INTERRUPT)
        if _receive_status(control, LEAVE_SECONDS) is None:
            control.sendall(keeper.KILL)
            _receive_status(control, LEAVE_SECONDS)


def _receive_status(control: socket.socket, seconds: float) -> bytes | None:
    """Return the keeper's last message: the command's wait status, empty if the keeper was killed; `None` at the deadline."""
    ready, _, _ = select.select([control], [], [], seconds)
    return control.recv(64) if ready else None
