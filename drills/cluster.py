"""A cluster of real `stratagem serve` processes whose tasks can be killed, frozen and started again."""

import os
import signal
from collections.abc import Mapping, Sequence

from drills.processes import Marked, is_stopped, until
from stratagem import environment
from stratagem.launch.plan import SERVE, tf_config
from stratagem.launch.ports import ReservedPort
from stratagem.launch.task import TaskName


class ServedCluster:
    """Servers on this machine, each a process of its own; other commands take the place of those of some jobs.

    Example:
        with ServedCluster({"ps": 2, "worker": 1}) as cluster:
            with sg.Session(cluster.target("ps", 0), secret=cluster.secret) as session: ...
            cluster.kill("ps", 1)
            cluster.start("ps", 1)
    """

    secret = "the secret of a drill"

    def __init__(
        self,
        counts: Mapping[str, int],
        commands: Mapping[str, Sequence[str]] | None = None,
        /,
        **environ: str,
    ) -> None:
        self._commands = commands or {}
        self._environ = environ
        self._ports = {
            TaskName(job, index): ReservedPort() for job, count in counts.items() for index in range(count)
        }
        self._running: dict[TaskName, Marked] = {}
        for task in self._ports:
            self.start(task.job, task.index)

    def __enter__(self) -> "ServedCluster":
        return self

    def __exit__(self, *_: object) -> None:
        for running in self._running.values():
            running.__exit__()
        for port in self._ports.values():
            port.close()

    @property
    def cluster(self) -> dict[str, list[str]]:
        """The cluster as a dictionary of addresses."""
        jobs: dict[str, list[str]] = {}
        for task, port in self._ports.items():
            jobs.setdefault(task.job, []).append(port.address)
        return jobs

    def target(self, job: str, index: int) -> str:
        """What to give to a Session."""
        return f"sg://{self._ports[TaskName(job, index)].address}"

    def process(self, job: str, index: int) -> Marked:
        """The process that runs, or last ran, a task."""
        return self._running[TaskName(job, index)]

    def start(self, job: str, index: int) -> None:
        """Start a task that is not running, at its old address."""
        task = TaskName(job, index)
        if task in self._running:
            self._running[task].__exit__()
        sock = self._ports[task].socket_for_task()
        addresses = {other: port.address for other, port in self._ports.items()}
        self._running[task] = Marked(
            self._commands.get(job, SERVE),
            environ={
                "TF_CONFIG": tf_config(task, addresses),
                environment.SECRET: self.secret,
                environment.LISTEN_FD: str(sock.fileno()),
                **self._environ,
            },
            pass_fds=(sock.fileno(),),
        )
        sock.close()

    def kill(self, job: str, index: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a task and wait for its end; or until all its threads stand still, if it is to freeze."""
        running = self._running[TaskName(job, index)]
        os.kill(running.pid, number)
        if number == signal.SIGSTOP:
            until(f"{job}:{index} to stand still", lambda: is_stopped(running.pid))
        elif number != signal.SIGCONT:
            running.process.wait(30)
