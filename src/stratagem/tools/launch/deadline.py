"""A command that is run to its end, or to its deadline, and of which nothing is left then, nor when this process dies.

It has a keeper, as the tasks of a job have: see `keeper`.
"""

import contextlib
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stratagem.errors import DeadlineExceeded
from stratagem.tools.launch import keeper

_LAST_LINES = 20
LEAVE_SECONDS = 1.8
"""For a launcher that is told to stop to end its own tasks, before all of it is killed."""


def run_with_deadline(command: Sequence[str], environ: Mapping[str, str], log: Path, seconds: float) -> int:
    """Run a command quietly; its exit code, negative for a signal.

    Args:
        command: What to run.
        environ: Its environment.
        log: Where all that it prints goes.
        seconds: The deadline.

    Raises:
        DeadlineExceeded: It did not end in time.
        KeyboardInterrupt: Ctrl-C; the command has been ended.
    """
    ours, theirs = socket.socketpair()
    with ours, log.open("wb") as output:
        with theirs:
            kept = (sys.executable, "-I", "-S", keeper.__file__, str(theirs.fileno()), "-1")
            process = subprocess.Popen(
                [*kept, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environ),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # the terminal's Ctrl-C comes to us alone; we pass it on
            )
        try:
            said = _heard(ours, seconds)
            if said is None:
                raise DeadlineExceeded(f"it did not end within {seconds:g} s")
            return os.waitstatus_to_exitcode(int(said)) if said else -9
        except BaseException:
            _end(ours)
            raise
        finally:
            ours.close()
            process.wait()


def last_words(log: Path) -> str:
    """What the launcher said of the failure, which has the failed task's own words in it; else the last lines of all."""
    lines = log.read_text(errors="replace").splitlines()
    told = [number for number, line in enumerate(lines) if line.startswith("stratagem: ")]
    return "\n".join(lines[told[0] :] if told else lines[-_LAST_LINES:])


def _end(control: socket.socket) -> None:
    """Ask the command to end, then see to it."""
    with contextlib.suppress(OSError):  # it has ended by itself
        control.sendall(keeper.INTERRUPT)
        if _heard(control, LEAVE_SECONDS) is None:
            control.sendall(keeper.KILL)
            _heard(control, LEAVE_SECONDS)


def _heard(control: socket.socket, seconds: float) -> bytes | None:
    """What the keeper says at the end: the command's wait status, nothing if it was killed; None if time is up."""
    ready, _, _ = select.select([control], [], [], seconds)
    return control.recv(64) if ready else None
