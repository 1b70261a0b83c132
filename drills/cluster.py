"""A cluster of real `stratagem serve` processes whose tasks can be killed, frozen and restarted."""

import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from drills.forked_programs import program_of
from drills.nursery import Nursery, Task
from drills.processes import Marked, is_stopped, until
from stratagem import environment
from stratagem.tools.launch.job_shape import SERVE, tf_config
from stratagem.tools.launch.tasks import ReservedPort, TaskName


class ServedCluster:
    """Servers on this machine, each a process of its own.

    Example:
        with ServedCluster({"ps": 2, "worker": 1}) as cluster:
            with sg.Session(cluster.target("ps", 0), secret=cluster.secret) as session: ...
            cluster.kill("ps", 1)
            cluster.start("ps", 1)

    Args:
        counts: Number of tasks of each job.
        commands: Commands of jobs that run something other than `stratagem serve`.
        nursery: Forks the tasks; without it they are started, which takes a second of processor time each.
        environ: Further environment variables of all tasks.
    """

    secret = "the secret of a drill"

    def __init__(
        self,
        counts: Mapping[str, int],
        commands: Mapping[str, Sequence[str]] | None = None,
        /,
        *,
        nursery: Nursery | None = None,
        **environ: str,
    ) -> None:
        self._commands = commands or {}
        self._environ = environ
        self._nursery = nursery
        self._stack = ExitStack()
        self._outputs = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        names = [TaskName(job, index) for job, count in counts.items() for index in range(count)]
        self._ports = {} if nursery else {name: ReservedPort() for name in names}
        own = [port.address for port in self._ports.values()]
        self._addresses = dict(zip(names, nursery.reserve(len(names)) if nursery else own, strict=True))
        self._running: dict[TaskName, Marked | Task] = {}
        for name in names:
            self.start(name.job, name.index)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for running in self._running.values():
            _end(running)
        for port in self._ports.values():
            port.close()
        self._stack.close()

    @property
    def cluster(self) -> dict[str, list[str]]:
        """The cluster as a dictionary of addresses."""
        jobs: dict[str, list[str]] = {}
        for name, address in self._addresses.items():
            jobs.setdefault(name.job, []).append(address)
        return jobs

    def target(self, job: str, index: int) -> str:
        """Return the target for a Session."""
        return f"sg://{self._addresses[TaskName(job, index)]}"

    def pid(self, job: str, index: int) -> int:
        """Return the process id of a task, also after its end."""
        return self._running[TaskName(job, index)].pid

    def process(self, job: str, index: int) -> Marked:
        """Return the process of a task that was started, not forked."""
        running = self._running[TaskName(job, index)]
        assert isinstance(running, Marked), f"{job}:{index} was forked"
        return running

    def ends(self, job: str, index: int) -> int:
        """Wait for the end of a task, and return its exit code."""
        running = self._running[TaskName(job, index)]
        return running.ends() if isinstance(running, Task) else running.finish()[0]

    def start(self, job: str, index: int) -> None:
        """Start a task that is not running, at its old address."""
        name = TaskName(job, index)
        if name in self._running:
            _end(self._running[name])
        command = self._commands.get(job, SERVE)
        environ = {
            "TF_CONFIG": tf_config(name, self._addresses),
            environment.SECRET: self.secret,
            **self._environ,
        }
        if self._nursery is not None:
            output = self._outputs / f"{job}-{index}"
            output.touch()
            program, address = program_of(command), self._addresses[name]
            self._running[name] = self._nursery.start(
                name, output, argv=program, address=address, environ=environ
            )
            return
        with self._ports[name].socket_for_task() as sock:
            environ[environment.LISTEN_FD] = str(sock.fileno())
            self._running[name] = Marked(command, environ=environ, pass_fds=(sock.fileno(),))

    def kill(self, job: str, index: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a task. Wait for its end; for SIGSTOP, until all its threads have stopped."""
        running = self._running[TaskName(job, index)]
        os.kill(running.pid, number)
        if number == signal.SIGSTOP:
            until(f"{job}:{index} to stand still", lambda: is_stopped(running.pid))
        elif number != signal.SIGCONT:
            running.ends() if isinstance(running, Task) else running.process.wait(30)


def _end(running: Marked | Task) -> None:
    if isinstance(running, Marked):
        running.__exit__()
    elif running.code is None:
        running.kill()
