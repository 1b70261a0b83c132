"""A contender's processes, seen from the harness: started, asked, and ended whatever happens."""

import contextlib
import json
import os
import secrets
import selectors
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from benchmarks.strategies.races import Contender
from benchmarks.strategies.task import Absent, Task
from benchmarks.strategies.work import Work
from stratagem import environment
from stratagem.devices import virtual_device_environment
from stratagem.launch.ports import ReservedPort

PATIENCE = 90.0
"""Seconds to wait for any answer: the slowest is the first, which has to compile."""
LAST_LINES = 15
SETTINGS_LEFT_OUT = (
    *("XLA_FLAGS", "PJRT_NPROC", "NPROC", "JAX_NUM_CPU_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    *("TF_CONFIG", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"),
)
"""Variables of the caller that would tilt the race."""


class Failed(Exception):
    """A contender did not do what it was asked to, and this is what it said."""


class Running:
    """A contender with its processes.

    Example:
        with Running(contender, work, devices=1, threads=None) as running:
            running.wait_until_ready()
            seconds, loss = running.go(100)
    """

    def __init__(self, contender: Contender, work: Work, devices: int, threads: int | None) -> None:
        self.contender = contender
        self.threads = threads
        self._children: list[subprocess.Popen[bytes]] = []
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            self._logs = [folder / f"{index}.log" for index in range(contender.processes)]
            stack.callback(self._kill)
            ports = [stack.enter_context(contextlib.closing(ReservedPort())) for _ in self._logs]
            addresses = tuple(port.address for port in ports) if len(ports) > 1 else ()
            environ = _environment(devices, threads)
            for index, port in enumerate(ports):
                task = Task(work, index, addresses, str(folder / "meeting"), threads)
                self._start(task, environ, port)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait_until_ready(self) -> None:
        """Return when every process is ready to train.

        Raises:
            Absent: It cannot take part here.
            Failed: It ended, or was not ready in time.
        """
        for line in self._lines():
            if line.startswith("skip "):
                raise Absent(line.removeprefix("skip "))

    def go(self, steps: int) -> tuple[float, float]:
        """Train for so many steps: the seconds of the slowest process, and the last loss."""
        for child in self._children:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it is gone: reading its answer says so
                child.stdin.write(f"go {steps}\n".encode())
                child.stdin.flush()
        seconds, losses = zip(*(map(float, line.split()) for line in self._lines()), strict=True)
        return max(seconds), statistics.mean(losses)

    def _start(self, task: Task, environ: Mapping[str, str], port: ReservedPort) -> None:
        command = [sys.executable, "-m", "benchmarks.strategies.child"]
        command += [self.contender.module, self.contender.function, task.to_json()]
        with port.socket_for_task() as sock, self._logs[task.index].open("wb") as log:
            cluster = {
                "TF_CONFIG": json.dumps(
                    {
                        "cluster": {"worker": task.addresses},
                        "task": {"type": "worker", "index": task.index},
                    }
                ),
                environment.LISTEN_FD: str(sock.fileno()),
            }
            self._children.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={**environ, **(cluster if task.addresses else {})},
                    pass_fds=(sock.fileno(),),
                    start_new_session=True,  # Ctrl-C is the harness's to handle
                )
            )

    def _lines(self) -> list[str]:
        """One line from each process."""
        lines: dict[int, bytes] = dict.fromkeys(range(len(self._children)), b"")
        deadline = time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as selector:
            for index, child in enumerate(self._children):
                assert child.stdout is not None
                selector.register(child.stdout, selectors.EVENT_READ, index)
            while selector.get_map():
                ready = selector.select(deadline - time.monotonic())
                if not ready:
                    raise Failed(f"no answer in {PATIENCE:g} s\n{self._said(*lines)}")
                for key, _ in ready:
                    received = os.read(key.fd, 4096)
                    if not received:
                        raise Failed(self._end_of(key.data))
                    lines[key.data] += received
                    if received.endswith(b"\n"):
                        selector.unregister(key.fileobj)
        return [line.decode().strip() for line in lines.values()]

    def _end_of(self, index: int) -> str:
        """How a process ended that has closed its output."""
        code = self._children[index].wait(PATIENCE)
        return f"process {index} ended with {code}\n{self._said(index)}"

    def _said(self, *indices: int) -> str:
        """The last lines that these processes wrote."""
        said = [self._logs[index].read_text(errors="replace").splitlines()[-LAST_LINES:] for index in indices]
        return "\n".join(line for lines in said for line in lines)

    def _kill(self) -> None:
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        for child in self._children:
            child.communicate()


def _environment(devices: int, threads: int | None) -> dict[str, str]:
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
