"""A cluster of real servers whose workers may import some modules."""

from collections.abc import Mapping, Sequence

from drills.cluster import ServedCluster
from drills.processes import Marked
from stratagem import environment
from stratagem.launch.plan import SERVE, tf_config
from stratagem.launch.task import TaskName


class ImportingCluster(ServedCluster):
    """The same as `ServedCluster`, with `--allow-import` for its workers."""

    def __init__(self, counts: Mapping[str, int], allowed: Sequence[str], **environ: str) -> None:
        self._flags = [word for module in allowed for word in ("--allow-import", module)]
        super().__init__(counts, **environ)

    def start(self, job: str, index: int) -> None:
        """Start a task that is not running, at its old address."""
        task = TaskName(job, index)
        if task in self._running:
            self._running[task].__exit__()
        sock = self._ports[task].socket_for_task()
        self._running[task] = Marked(
            [*SERVE, *(self._flags if job == "worker" else [])],
            environ={
                "TF_CONFIG": tf_config(task, {other: port.address for other, port in self._ports.items()}),
                environment.SECRET: self.secret,
                environment.LISTEN_FD: str(sock.fileno()),
                **self._environ,
            },
            pass_fds=(sock.fileno(),),
        )
        sock.close()
