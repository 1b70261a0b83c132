"""The rules for a task in a cluster, which are TensorFlow's: which jobs there are, and who may be one."""

import difflib

from stratagem.cluster.naming import Names
from stratagem.cluster.spec import ClusterSpec

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"
JOBS = (CHIEF, WORKER, PS, EVALUATOR)
_OLD_CHIEF = "master"
_SINGLE = (CHIEF, EVALUATOR)


def canonical_job(job: str) -> str:
    """The name that we use for a job: TFJob's `master` is the chief."""
    return CHIEF if job == _OLD_CHIEF else job


def unknown_job(job: object) -> str:
    """Says that `job` is not a job, which ones are, and which was probably meant."""
    meant = []
    if isinstance(job, str):
        lowered = job.lower()
        meant = [CHIEF] if lowered == _OLD_CHIEF else difflib.get_close_matches(lowered, JOBS, n=1)
    question = f"; did you mean {meant[0]!r}?" if meant else ""
    return f"{job!r} is not one of the jobs {', '.join(JOBS)}{question}"


def check_cluster(cluster: ClusterSpec, names: Names) -> None:
    """Refuses unknown jobs, jobs without tasks, and a second chief or evaluator."""
    for job in cluster.jobs:
        if job not in JOBS:
            raise names.error(f"{names.job(job)}: {unknown_job(job)}")
        count = cluster.num_tasks(job)
        if count == 0:
            raise names.error(f"{names.job(job)} is empty; give it an address, or leave the job out")
        if count > 1 and job in _SINGLE:
            raise names.error(f"{names.job(job)} has {count} tasks; a cluster has at most one {job}")


def check_task(cluster: ClusterSpec, job_name: object, task_index: object, names: Names) -> None:
    """Refuses a task that is not in the cluster. Only the evaluator may stand outside it, with index 0."""
    if job_name not in JOBS:
        raise names.error(f"{names.job_name}: {unknown_job(job_name)}")
    if isinstance(task_index, bool) or not isinstance(task_index, int):
        raise names.error(
            f"{names.task_index} is {task_index!r}, of type {type(task_index).__name__}; write an integer: 0, 1, 2, …"
        )
    if job_name in cluster.jobs:
        indices = cluster.task_indices(str(job_name))
    elif job_name == EVALUATOR:
        indices = [0]
    else:
        raise names.error(
            f"{names.job_name} is {job_name!r}, but the cluster has no such job; "
            f"it has {', '.join(cluster.jobs) or 'no job at all'}"
        )
    if task_index not in indices:
        allowed = ", ".join(map(str, indices)) if len(indices) < 9 else f"{indices[0]} to {indices[-1]}"
        raise names.error(f"{names.task_index} is {task_index}, but the {job_name} tasks are: {allowed}")
