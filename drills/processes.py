"""Start real processes that can be found again by a marker in their environment, whatever their names."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TypeVar

MARKER = "STRATAGEM_DRILL"
T = TypeVar("T")


def let_children_be_signalled() -> None:
    """Let the children of this process obey Ctrl-C and a closed terminal, even if this process ignores them.

    A process that is started by `nohup`, or in the background of a script, ignores these signals, and so would its children. A
    signal with a handler is not ignored in children: so install a handler that does nothing.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


class NotInTime(AssertionError):
    """Something did not happen before its deadline."""


def until(what: str, ask: Callable[[], T], seconds: float = 30.0) -> T:
    """Call `ask` until the answer is true, and return it. Raise with `what` at the deadline."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise NotInTime(f"after {seconds:g} s still waiting: {what}")
        time.sleep(0.005)  # processes of strangers have no event to wait for
    return answer


def is_stopped(pid: int) -> bool:
    """Return whether every thread of a process has been stopped by a signal."""
    states = [
        path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return set(states) == {"T"}


def fork() -> int:
    """`os.fork`, without warnings of libraries that do not concern a child which does not use them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def descriptors(pid: int | str = "self") -> int:
    """Return the number of open descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


class Marked:
    """A process and all that it starts, under one marker.

    Example:
        with Marked([sys.executable, "-c", "..."]) as job:
            job.processes()  # {pid: command line}
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int | IO[bytes] = subprocess.PIPE,
        environ: dict[str, str] | None = None,
        new_session: bool = True,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.marker = uuid.uuid4().hex
        env = {**os.environ, **(environ or {}), MARKER: self.marker}
        self.process = subprocess.Popen(
            argv,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=new_session,
            pass_fds=pass_fds,
        )

    def __enter__(self) -> "Marked":
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    @property
    def pid(self) -> int:
        """The process itself."""
        return self.process.pid

    def processes(self) -> dict[int, str]:
        """Return every living process under the marker, with its command line."""
        wanted = f"{MARKER}={self.marker}".encode()
        return {pid: line for pid, environ, line in _all_processes() if wanted in environ.split(b"\0")}

    def find(self, text: str) -> list[int]:
        """Return the processes under the marker whose command line contains `text`."""
        return [pid for pid, line in self.processes().items() if text in line]

    def gone(self, seconds: float) -> float:
        """Wait until no process is left under the marker. Return the seconds that this took."""
        began = time.monotonic()
        try:
            until("all processes to be gone", lambda: not self.processes(), seconds)
        except NotInTime as error:
            raise NotInTime(f"{error}; left: {self.processes()}") from None
        return time.monotonic() - began

    def finish(self, seconds: float = 60.0) -> tuple[int, str, str]:
        """Wait for the process's end. Return exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, (out or b"").decode(), (err or b"").decode()


def launcher(*arguments: str | Path, **options: object) -> Marked:
    """Start `stratagem run` with these arguments."""
    argv = [sys.executable, "-m", "stratagem", "run", *map(str, arguments)]
    return Marked(argv, **options)  # type: ignore[arg-type]


def _all_processes() -> Iterator[tuple[int, bytes, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # gone while we looked, or another user's
                state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
                if state != b"Z":
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    yield int(entry.name), (entry / "environ").read_bytes(), line
