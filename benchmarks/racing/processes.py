"""The processes of a contender, as the harness sees them: it starts them, talks to them, and always ends them."""

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from benchmarks.racing.conversation import SOCKET, Absent
from stratagem import environment
from stratagem.devices import virtual_device_environment

PATIENCE = 90.0
"""Seconds to wait for any answer, as a rule: the slowest is the first, which has to compile."""
LEAVE = 10.0
"""Seconds for those to end by themselves who are not needed any more."""
LAST_LINES = 15
_TASK = b"TF_CONFIG="
SETTINGS_LEFT_OUT = (
    *("XLA_FLAGS", "PJRT_NPROC", "NPROC", "JAX_NUM_CPU_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    *("TF_CONFIG", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"),
)
"""Variables of the caller that would tilt the race."""


class Failed(Exception):
    """A contender did not do what it was asked to; the message has its output."""


class Processes:
    """Processes of which some talk to the harness: see `conversation`.

    Args:
        talkers: How many talk. They are numbered, and may be children of the processes that are started here.
        patience: Seconds to wait for an answer.

    Attributes:
        folder: A directory for their files, which is removed with them.
    """

    def __init__(self, talkers: int, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._children: list[subprocess.Popen[bytes]] = []
        self._leaving: list[subprocess.Popen[bytes]] = []
        self._logs: list[Path] = []
        self._talkers: dict[int, socket.socket] = {}
        self._received: dict[int, bytes] = dict.fromkeys(range(talkers), b"")
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            self._listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            self._listener.bind(str(self.folder / "harness"))
            self._listener.listen()
            stack.callback(self._kill)
            stack.callback(self._hang_up)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        pass_fds: Sequence[int] = (),
        leaves: bool = True,
    ) -> None:
        """Start a process.

        Args:
            command: Its command.
            environ: Its environment.
            pass_fds: The descriptors that it inherits.
            leaves: Whether it ends when the harness closes the connection; others are killed.
        """
        self._logs.append(self.folder / f"{len(self._logs)}.log")
        with self._logs[-1].open("wb") as log:
            self._children.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # What they leave behind for others must go with them.
                    env={**environ, SOCKET: str(self.folder / "harness"), "TMPDIR": str(self.folder)},
                    pass_fds=tuple(pass_fds),
                    start_new_session=True,  # Ctrl-C is the harness's to handle
                )
            )
        if leaves:
            self._leaving.append(self._children[-1])

    def wait_until_ready(self) -> None:
        """Wait until every talker is ready to train.

        Raises:
            Absent: The contender cannot take part here.
            Failed: It ended, or was not ready in time.
        """
        for line in self.hear(self._received):
            if line.startswith("skip "):
                raise Absent(line.removeprefix("skip "))

    def say(self, index: int, line: str) -> None:
        """Send a line to one talker."""
        with contextlib.suppress(BrokenPipeError):  # it is gone: hearing it says so
            self._talkers[index].sendall(f"{line}\n".encode())

    def hear(self, indices: Iterable[int]) -> list[str]:
        """Return one line from each of some talkers.

        Raises:
            Failed: A process ended, or one did not answer in time.
        """
        wanted = list(indices)
        deadline = time.monotonic() + self._patience
        with ExitStack() as stack:
            selector = stack.enter_context(selectors.DefaultSelector())
            selector.register(self._listener, selectors.EVENT_READ, self._listener)
            for child in self._children:
                ended = os.pidfd_open(child.pid)
                stack.callback(os.close, ended)
                selector.register(ended, selectors.EVENT_READ, child)
            for talker in self._talkers.values():
                selector.register(talker, selectors.EVENT_READ, talker)
            while not all(b"\n" in self._received[index] for index in wanted):
                happened = selector.select(deadline - time.monotonic())
                if not happened:
                    raise Failed(f"no answer in {self._patience:g} s\n{self._said()}")
                # What was said last counts more than that its process then ended.
                for key, _ in sorted(happened, key=lambda each: isinstance(each[0].data, subprocess.Popen)):
                    match key.data:
                        case subprocess.Popen():
                            raise Failed(self._end_of(key.data))
                        case each if each is self._listener:
                            talker, _ = self._listener.accept()
                            selector.register(talker, selectors.EVENT_READ, talker)
                        case talker:
                            self._take(talker, selector)
        lines = {index: self._received[index].partition(b"\n") for index in wanted}
        self._received |= {index: rest for index, (_, _, rest) in lines.items()}
        return [line.decode() for line, _, _ in lines.values()]

    def cpu_seconds(self) -> float:
        """Return the CPU time that all processes and their children have used so far."""
        return sum(_cpu_seconds(pid) for pid in _with_descendants({child.pid for child in self._children}))

    def peak_memory(self) -> dict[str, int]:
        """Return the peak memory of the processes of each job, as TF_CONFIG names it."""
        peaks: dict[str, int] = {}
        for pid in _with_descendants({child.pid for child in self._children}):
            with contextlib.suppress(OSError, ValueError):  # it ended meanwhile, or is no task
                settings = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                [variable] = (each for each in settings if each.startswith(_TASK))
                kind = str(json.loads(variable.removeprefix(_TASK))["task"]["type"])
                peaks[kind] = max(peaks.get(kind, 0), _peak_memory(pid))
        return peaks

    def _take(self, talker: socket.socket, selector: selectors.BaseSelector) -> None:
        received = talker.recv(4096)
        if not received:
            selector.unregister(talker)  # its process ends, and that says more
            return
        known = [index for index, each in self._talkers.items() if each is talker]
        if not known:
            hello, _, received = received.partition(b"\n")
            known = [int(hello.removeprefix(b"hello "))]
            self._talkers[known[0]] = talker
        self._received[known[0]] += received

    def _end_of(self, child: "subprocess.Popen[bytes]") -> str:
        index = self._children.index(child)
        return f"process {index} ended with {child.wait()}\n{self._said(index)}"

    def _said(self, *indices: int) -> str:
        """Return the last lines that these processes wrote, or all."""
        logs = [self._logs[index] for index in indices] if indices else self._logs
        said = [log.read_text(errors="replace").splitlines()[-LAST_LINES:] for log in logs]
        return "\n".join(line for lines in said for line in lines)

    def _hang_up(self) -> None:
        for talker in self._talkers.values():
            talker.close()

    def _kill(self) -> None:
        deadline = time.monotonic() + LEAVE
        for child in self._leaving if self._talkers else []:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _with_descendants(pids: set[int]) -> set[int]:
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            parents[int(status.parent.name)] = int(_fields(status)[1])
    found = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _cpu_seconds(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = _fields(Path(f"/proc/{pid}/stat"))
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _peak_memory(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0  # it has ended


def _fields(status: Path) -> list[str]:
    """Return the fields of a process's status after its name, which may contain spaces."""
    return status.read_text().rpartition(")")[2].split()


def fair_environment(threads: int | None, devices: int = 1) -> dict[str, str]:
    """Return the caller's environment without variables that would favour a contender, for these numbers of threads and devices."""
    inherited = {name: value for name, value in os.environ.items() if name not in SETTINGS_LEFT_OUT}
    settings = {
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        environment.SECRET: secrets.token_hex(16),
    }
    if devices > 1:
        settings |= virtual_device_environment(devices, inherited)
    if threads is not None:
        settings["OMP_NUM_THREADS"] = str(threads)
    if threads == 1:
        settings["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    elif threads is not None:
        settings["PJRT_NPROC"] = str(threads)
    return inherited | settings


def python_module(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with this interpreter."""
    return [sys.executable, "-m", module, *arguments]
