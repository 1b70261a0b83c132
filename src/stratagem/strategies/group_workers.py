"""The workers of a cluster, met through the runtime: `Workers` over a `Group` and this task's server."""

from collections.abc import Sequence

from stratagem.cluster import ClusterConfig, ClusterSpec
from stratagem.collectives import Group, GroupOptions
from stratagem.errors import RemoteError, StrategyError
from stratagem.runtime import Server
from stratagem.runtime.peers import task_name
from stratagem.strategies.workers import Array

_ANSWER_SECONDS = 2.0


class GroupWorkers:
    """All workers of a cluster, the chief among them and first.

    Args:
        config: The cluster, and which of its tasks this is.
        server: This task's server.
        options: Sizes and times.
    """

    def __init__(self, config: ClusterConfig, server: Server, options: GroupOptions) -> None:
        tasks = worker_tasks(config)
        self.cluster: ClusterSpec | None = config.cluster
        self.is_chief = config.is_chief
        self.index = tasks.index(server.task)
        self.count = len(tasks)
        self.server = server
        self.group = Group(server, server.peers, tasks, self.index, options)

    def are_on_one_host(self) -> bool:
        """Whether every other worker is found to be on this host; calls each of them."""
        others = [self.server.peers[task] for task in self.group.tasks if task != self.server.task]
        for peer in others:
            peer.call("ping")
        return all(peer.transport == "shared memory" for peer in others)

    def unreachable(self) -> list[str]:
        """The workers that do not answer now."""
        lost = []
        for task in self.group.tasks:
            try:
                self.server.peers[task].call("ping", timeout=_ANSWER_SECONDS, wait=False)
            except RemoteError:
                lost.append(task)
        return lost

    def gather(self, array: Array) -> Sequence[Array]:
        """The arrays of all workers, in their order."""
        return [own[0] for own in self.group.all_gather([array])]

    def close(self) -> None:
        """Leave the others, having finished."""
        self.group.close()
        self.server.stop()


def worker_tasks(config: ClusterConfig) -> list[str]:
    """The names of the tasks that train, in the same order everywhere."""
    tasks = [
        task_name(job, index)
        for job in ("chief", "worker")
        if job in config.cluster.jobs
        for index in config.cluster.task_indices(job)
    ]
    own = task_name(config.job_name, config.task_index)
    if own not in tasks:
        raise StrategyError(f"{own} does not train: a MultiWorkerMirroredStrategy is for {', '.join(tasks)}")
    return tasks
