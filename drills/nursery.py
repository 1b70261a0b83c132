"""Tasks of parameter-server jobs, forked by a process that has imported everything already; also run as that process.

A task is a real one: a user's script or `stratagem serve`, with its own environment, address, output and end. Only the
imports, which take longer than most jobs here, are not repeated.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from drills.forked_programs import leave_modules, run_program
from drills.hosts import Host, enter
from drills.processes import MARKER, Marked, NotInTime, fork, until
from drills.quick_compiling import QUICKLY
from stratagem import environment
from stratagem.tools.launch.job_shape import tf_config
from stratagem.tools.launch.tasks import ReservedPort, TaskName

HERE = Path(__file__).resolve()
ROOT = HERE.parents[1]
DEADLINE = 90.0
_ANSWER_SECONDS = 240.0
"""The first answer comes when all has been imported, by as many of these processes at a time as there are testers."""
_GONE_SECONDS = 10.0
_PORT = 2222


class Task:
    """One start of a task."""

    def __init__(self, name: TaskName, pid: int, output: Path) -> None:
        self.name = name
        self.pid = pid
        self.code: int | None = None
        self._output = output

    @property
    def text(self) -> str:
        """All that it has printed and logged so far."""
        return self._output.read_text(errors="replace")

    def says(self, text: str, seconds: float = DEADLINE) -> None:
        """Wait until it has printed or logged a text."""
        until(f"{self.name} to say {text!r}", lambda: text in self.text or self.code is not None, seconds)
        assert text in self.text, f"{self.name} ended with {self.code} before it said {text!r}: {self.text}"

    def ends(self, seconds: float = DEADLINE) -> int:
        """Wait for its end. Return its exit code, negative for a signal."""
        until(f"the end of {self.name}, which said {self.text}", lambda: self.code is not None, seconds)
        assert self.code is not None
        return self.code

    def ends_well(self, seconds: float = DEADLINE) -> str:
        """Wait for its successful end. Return its output."""
        assert self.ends(seconds) == 0, self.text
        return self.text

    def results(self) -> list[Any]:
        """Return what it has printed by `tell`."""
        lines = self.text.splitlines()
        return [json.loads(line.removeprefix("told: ")) for line in lines if line.startswith("told: ")]

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal. Wait for the end, unless the signal only stops or continues the task."""
        os.kill(self.pid, number)
        if number not in (signal.SIGSTOP, signal.SIGCONT):
            self.ends()


class Job:
    """The tasks of one cluster, started one by one.

    Args:
        nursery: Forks the tasks.
        directory: The directory of their outputs.
        ps: Number of servers.
        workers: Number of workers.
        hosts: One for each task, the servers first; without them, all are on this host.
        environ: Further environment variables of all tasks.
    """

    def __init__(
        self,
        nursery: "Nursery",
        directory: Path,
        ps: int,
        workers: int,
        hosts: Sequence[Host] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._nursery = nursery
        self._directory = directory
        self._environ = dict(environ or {})
        names = [*(TaskName("ps", index) for index in range(ps))]
        names += [*(TaskName("worker", index) for index in range(workers))]
        self.hosts = dict(zip(names, hosts, strict=True)) if hosts else {}
        if hosts:
            self.addresses = {name: f"{host.address}:{_PORT}" for name, host in self.hosts.items()}
        else:
            self.addresses = dict(zip(names, nursery.reserve(len(names)), strict=True))
        self._started: list[Task] = []

    @property
    def target(self) -> str:
        """The target for `stratagem status`."""
        return f"sg://{self.addresses[TaskName('ps', 0)]}"

    def serve(self, index: int, **environ: str) -> Task:
        """Start `stratagem serve` as a parameter server."""
        return self._start(TaskName("ps", index), ["stratagem", "serve"], environ)

    def status(self) -> dict[str, Any]:
        """Return what `stratagem status --json` prints of the cluster."""
        asked = self._start(TaskName("status", 0), ["stratagem", "status", self.target, "--json"], {})
        status: dict[str, Any] = json.loads(asked.ends_well())
        return status

    def start(self, job: str, index: int, script: Path, *arguments: object, **environ: str) -> Task:
        """Start a script as a task."""
        return self._start(TaskName(job, index), [str(script), *map(str, arguments)], environ)

    def launch(self, *arguments: object, **environ: str) -> Task:
        """Start `stratagem run`, whose tasks do not belong to this job."""
        return self._start(TaskName("launcher", 0), ["stratagem", "run", *map(str, arguments)], environ)

    def flags(self, job: str, index: int) -> list[str]:
        """Return the options that define a task of the cluster without TF_CONFIG."""
        hosts = {
            each: ",".join(address for name, address in self.addresses.items() if name.job == each)
            for each in ("ps", "worker")
        }
        own = [f"--job_name={job}", f"--task_index={index}"]
        return [*own, *(f"--{each}_hosts={addresses}" for each, addresses in hosts.items())]

    def _start(self, name: TaskName, argv: list[str], environ: dict[str, str]) -> Task:
        output = self._directory / f"{name.job}-{name.index}-{len(self._started)}.out"
        output.touch()
        own = {"TF_CONFIG": tf_config(name, self.addresses)} if name in self.addresses else {}
        host = self.hosts.get(name, self.hosts.get(TaskName("ps", 0)))
        task = self._nursery.start(
            name,
            output,
            argv=argv,
            address=None if self.hosts else self.addresses.get(name),
            namespace=host and host.namespace,
            environ={**self._environ, **own, **environ},
        )
        self._started.append(task)
        return task

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._started:
            if task.code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(task.pid, signal.SIGKILL)
        for task in self._started:
            task.ends()
        if error is not None:
            for task in self._started:
                error.add_note(f"--- {task.name}, ended with {task.code}:\n{task.text}")


class Nursery:
    """The process that forks tasks.

    Args:
        paths: Further directories in which tasks find modules.
        before: Words before the command, such as `unshare --mount`.
        modules: Further modules to import for the tasks.
        environ: Further environment variables, for the process and the tasks.
    """

    def __init__(
        self,
        paths: Sequence[Path] = (),
        before: Sequence[str] = (),
        modules: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        read, write = os.pipe()
        self._marked = Marked(
            [*before, sys.executable, str(HERE), *modules],
            stdin=read,
            stderr=2,
            environ={
                "PYTHONPATH": os.pathsep.join(map(str, [*paths, ROOT])),
                environment.SECRET: "known to all tasks",
                environment.LOG_LEVEL: "info",
                **QUICKLY,
                **(environ or {}),
            },
        )
        os.close(read)
        self._commands = os.fdopen(write, "w", buffering=1)
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._asking = threading.Lock()  # answers come in the order of what was asked
        self._running: dict[int, Task] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process itself."""
        return self._marked.pid

    def tasks(self) -> dict[str, int]:
        """Return the process of each running task, such as `ps:1`, of any job."""
        found = {}
        for pid in self._marked.processes():
            with contextlib.suppress(OSError):  # gone while we looked
                found[Path(f"/proc/{pid}/comm").read_text().strip()] = pid
        return {name: pid for name, pid in found.items() if ":" in name}

    def is_idle(self) -> bool:
        """Return whether no forked process, and no child of one, is running."""
        return set(self._marked.processes()) == {self.pid}

    def job(
        self,
        directory: Path,
        ps: int,
        workers: int,
        hosts: Sequence[Host] = (),
        environ: Mapping[str, str] | None = None,
    ) -> Job:
        """Make a job none of whose tasks is running yet; see `Job` for the arguments."""
        return Job(self, directory, ps, workers, hosts, environ)

    def run(
        self,
        directory: Path,
        script: Path,
        *arguments: object,
        ps: int = 0,
        workers: int = 1,
        seconds: float = DEADLINE,
        environ: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Run a script to its end, as every worker of a cluster, or by itself where there are no others.

        Return the output of each worker, then of each server. All have ended well.
        """
        is_alone = workers == 1 and not ps
        with self.job(directory, ps, 0 if is_alone else workers, environ=environ) as job:
            servers = [job.serve(index) for index in range(ps)]
            name = "script" if is_alone else "worker"
            tasks = [job.start(name, index, script, *arguments) for index in range(workers)]
            return [task.ends_well(seconds) for task in [*tasks, *servers]]

    def reserve(self, count: int) -> list[str]:
        """Return addresses that nobody else has."""
        addresses: list[str] = self._ask({"reserve": count})["addresses"]
        return addresses

    def start(self, name: TaskName, output: Path, **command: Any) -> Task:
        """Fork a task."""
        task = Task(name, 0, output)
        places = {"output": str(output), "errors": str(output), "directory": str(Path.cwd())}
        answer = self._ask({**places, "address": None, "namespace": None, "inherits": True, **command})
        task.pid = answer["pid"]
        self._running[task.pid] = task
        with self._asking:
            self._commands.write(json.dumps({"watch": task.pid}) + "\n")
        return task

    def command(
        self, directory: Path, argv: Sequence[str], environ: Mapping[str, str], seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a script, or `stratagem`, to its end, as `subprocess.run` would: without the environment of this process."""
        with tempfile.TemporaryDirectory() as outputs:
            output, errors = Path(outputs) / "output", Path(outputs) / "errors"
            output.touch()
            errors.touch()
            whole = {**environ, MARKER: self._marked.marker}
            places = {"errors": str(errors), "directory": str(directory)}
            task = self.start(
                TaskName("command", 0), output, argv=list(argv), environ=whole, inherits=False, **places
            )
            try:
                code = task.ends(seconds)
            finally:
                if task.code is None:
                    task.kill()
            return subprocess.CompletedProcess(argv, code, output.read_text(), errors.read_text())

    def outcome(
        self, *argv: object, environ: Mapping[str, str] | None = None, seconds: float = DEADLINE
    ) -> subprocess.CompletedProcess[str]:
        """Run a script, or `stratagem`, in the repository, until it and all processes that it started have ended.

        `environ` is added to the environment of this process.
        """
        done = self.command(ROOT, [*map(str, argv)], {**os.environ, **(environ or {})}, seconds)
        until(f"all that {argv} has started to be gone", self.is_idle, _GONE_SECONDS)
        return done

    def said(self, *argv: object, environ: Mapping[str, str] | None = None, seconds: float = DEADLINE) -> str:
        """Run as `outcome` does, assert success without a traceback, and return standard output."""
        done = self.outcome(*argv, environ=environ, seconds=seconds)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        with self._asking:
            self._commands.write(json.dumps(command) + "\n")
            try:
                return self._answers.get(timeout=_ANSWER_SECONDS)
            except queue.Empty:
                raise NotInTime(f"no answer within {_ANSWER_SECONDS:g} s to {command}") from None

    def _read(self) -> None:
        for line in self._marked.process.stdout or ():
            said = json.loads(line)
            if "code" in said:
                self._running.pop(said["pid"]).code = said["code"]
            else:
                self._answers.put(said)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._commands.close()
        try:
            assert self._marked.process.wait(10) == 0
            self._reader.join(10)
            assert not self._marked.processes(), "something is left running"
        finally:
            self._marked.__exit__()


@contextlib.contextmanager
def use_nursery(nursery: Nursery | None) -> Iterator[Nursery]:
    """Use the given nursery, or else a new one."""
    if nursery is not None:
        yield nursery
        return
    with Nursery() as own:
        yield own


# ------------------------------------------------------- the process that forks


def say(**words: Any) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


class Forks:
    """Carries out the commands on standard input, until its end."""

    def __init__(self) -> None:
        self._ports: dict[str, ReservedPort] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._unread = b""

    def run(self) -> dict[str, Any] | None:
        """Serve until the end of input; in a child, return what it is to become."""
        while True:
            for key, _ in self._selector.select():
                if key.fd != 0:
                    self._bury(key.fd, key.data)
                    continue
                data = os.read(0, 65536)
                if not data:
                    return None
                *lines, self._unread = (self._unread + data).split(b"\n")
                for line in lines:
                    command: dict[str, Any] = json.loads(line)
                    if self._follow(command):
                        return command

    def _follow(self, command: dict[str, Any]) -> bool:
        """Carry out a command. Return whether this is the child that it asked for."""
        if "reserve" in command:
            ports = [ReservedPort() for _ in range(command["reserve"])]
            self._ports.update({port.address: port for port in ports})
            say(addresses=[port.address for port in ports])
        elif "watch" in command:
            self._selector.register(os.pidfd_open(command["watch"]), selectors.EVENT_READ, command["watch"])
        else:
            pid = fork()
            if pid == 0:
                self._selector.close()
                if command["address"] is not None:
                    sock = self._ports[command["address"]].socket_for_task()
                    command["environ"][environment.LISTEN_FD] = str(sock.detach())
                return True
            say(pid=pid)
        return False

    def _bury(self, descriptor: int, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        say(pid=pid, code=os.waitstatus_to_exitcode(status))


def become(command: dict[str, Any]) -> None:
    """Become the task, in a process that was forked for it."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    outputs = [os.open(command[name], os.O_WRONLY | os.O_APPEND) for name in ("output", "errors")]
    for descriptor, source in enumerate((nothing, *outputs)):
        os.dup2(source, descriptor)
        os.close(source)
    os.setsid()
    os.chdir(command["directory"])
    if command["namespace"] is not None:
        enter(command["namespace"])
    if not command["inherits"]:
        os.environ.clear()
    os.environ.update(command["environ"])
    run_program(command["argv"])


def import_everything(modules: Sequence[str]) -> None:
    """Import all modules that tasks need, also those that JAX imports when it is first used."""
    for module in (
        *modules,
        "scipy.linalg",
        "jaxlib.mlir.dialects.mhlo",
        "drills.counting_task",
        "drills.task_messages",
        "stratagem.tools.launch.run",
        "stratagem.tools.launch.serve",
        "stratagem.tools.launch.status",
        "stratagem.parameters.service",
        "stratagem.runtime.programs.inspector",
        "stratagem.strategies.parameter_server",
    ):
        importlib.import_module(module)


if __name__ == "__main__":
    atexit.register(leave_modules)  # first, so that it is called last
    import_everything(sys.argv[1:])
    gc.freeze()  # or every task would look through it all, page by page, for what nobody holds any more
    if (mine := Forks().run()) is not None:
        become(mine)
