"""The roles in a cluster: the jobs that there are, TensorFlow's rules for them, and the task that this process is."""

import difflib
from dataclasses import dataclass

from stratagem.cluster.cluster_spec import ClusterSpec
from stratagem.cluster.wording import CONFIG, Wording

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"
JOBS = (CHIEF, WORKER, PS, EVALUATOR)
_OLD_CHIEF = "master"
_SINGLE = (CHIEF, EVALUATOR)


def canonical_job(job: str) -> str:
    """Return our name for a job: TFJob's `master` is the chief."""
    return CHIEF if job == _OLD_CHIEF else job


def unknown_job(job: object) -> str:
    """Return the words that `job` is not a job, which ones are, and which was probably meant."""
    meant = []
    if isinstance(job, str):
        lowered = job.lower()
        meant = [CHIEF] if lowered == _OLD_CHIEF else difflib.get_close_matches(lowered, JOBS, n=1)
    question = f"; did you mean {meant[0]!r}?" if meant else ""
    return f"{job!r} is not one of the jobs {', '.join(JOBS)}{question}"


def check_cluster(cluster: ClusterSpec, wording: Wording) -> None:
    """Refuse unknown jobs, jobs without tasks, and a second chief or evaluator."""
    for job in cluster.jobs:
        if job not in JOBS:
            raise wording.error(f"{wording.job(job)}: {unknown_job(job)}")
        count = cluster.num_tasks(job)
        if count == 0:
            raise wording.error(f"{wording.job(job)} is empty; give it an address, or leave the job out")
        if count > 1 and job in _SINGLE:
            raise wording.error(f"{wording.job(job)} has {count} tasks; a cluster has at most one {job}")


def check_task(cluster: ClusterSpec, job_name: object, task_index: object, wording: Wording) -> None:
    """Refuse a task that is not in the cluster. Only the evaluator may stand outside it, with index 0."""
    if job_name not in JOBS:
        raise wording.error(f"{wording.job_name}: {unknown_job(job_name)}")
    if isinstance(task_index, bool) or not isinstance(task_index, int):
        raise wording.error(
            f"{wording.task_index} is {task_index!r}, of type {type(task_index).__name__}; write an integer: 0, 1, 2, …"
        )
    if job_name in cluster.jobs:
        indices = cluster.task_indices(str(job_name))
    elif job_name == EVALUATOR:
        indices = [0]
    else:
        raise wording.error(
            f"{wording.job_name} is {job_name!r}, but the cluster has no such job; "
            f"it has {', '.join(cluster.jobs) or 'no job at all'}"
        )
    if task_index not in indices:
        allowed = ", ".join(map(str, indices)) if len(indices) < 9 else f"{indices[0]} to {indices[-1]}"
        raise wording.error(f"{wording.task_index} is {task_index}, but the {job_name} tasks are: {allowed}")


@dataclass(frozen=True)
class ClusterConfig:
    """A cluster as one of its tasks sees it.

    The jobs are chief, worker, ps and evaluator, with at most one chief and one evaluator. The evaluator may
    stand outside the cluster; every other task is in it.

    Attributes:
        cluster: The tasks and their addresses.
        job_name: This task's job.
        task_index: This task's index in its job.
        source: Where this comes from: "TF_CONFIG", "flags", "Slurm", …
        announced_workers: The number of workers, if the source announced more than it could name, so that some are
            missing in `cluster`; otherwise `None`.

    Raises:
        ClusterError: The cluster breaks the rules above or has no such task.

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
        """True for the chief, and for worker 0 where the cluster has no chief. Never the evaluator."""
        if self.job_name == CHIEF:
            return True
        return self.job_name == WORKER and self.task_index == 0 and CHIEF not in self.cluster.jobs

    @property
    def address(self) -> str | None:
        """This task's `host:port`; `None` for an evaluator that stands outside the cluster."""
        if self.job_name not in self.cluster.jobs:
            return None
        return self.cluster.task_address(self.job_name, self.task_index)
