"""A cluster, and which of its tasks this process is."""

from dataclasses import dataclass

from stratagem.cluster.naming import CONFIG
from stratagem.cluster.roles import CHIEF, WORKER, check_cluster, check_task
from stratagem.cluster.spec import ClusterSpec


@dataclass(frozen=True)
class ClusterConfig:
    """A cluster as one of its tasks sees it.

    The jobs are chief, worker, ps and evaluator, with at most one chief and one evaluator. The evaluator may
    stand outside the cluster; every other task is in it.

    Attributes:
        cluster: the tasks and their addresses.
        job_name: this task's job.
        task_index: this task's index in its job.
        source: who said so: "TF_CONFIG", "flags", "Slurm", …
        announced_workers: how many workers the source announced where it could not name them all, so that
            some are missing in `cluster`; `None` where the cluster itself tells.

    Raises:
        ClusterError: if the cluster breaks the rules above or has no such task.

    Example:
        >>> cluster = ClusterSpec({"worker": ["a:2222", "b:2222"]})
        >>> ClusterConfig(cluster, job_name="worker", task_index=0).is_chief
        True
    """

    cluster: ClusterSpec
    job_name: str
    task_index: int
    source: str = "arguments"
    announced_workers: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.cluster, ClusterSpec):
            raise CONFIG.error(f"cluster is {self.cluster!r}, not a ClusterSpec")
        check_cluster(self.cluster, CONFIG)
        check_task(self.cluster, self.job_name, self.task_index, CONFIG)

    @property
    def is_chief(self) -> bool:
        """Whether this is the chief, or worker 0 where the cluster has no chief. Never the evaluator."""
        if self.job_name == CHIEF:
            return True
        return self.job_name == WORKER and self.task_index == 0 and CHIEF not in self.cluster.jobs

    @property
    def address(self) -> str | None:
        """This task's `host:port`; `None` for an evaluator that stands outside the cluster."""
        if self.job_name not in self.cluster.jobs:
            return None
        return self.cluster.task_address(self.job_name, self.task_index)
