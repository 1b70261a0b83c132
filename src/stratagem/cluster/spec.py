"""The tasks of a cluster and their addresses, as TensorFlow's `tf.train.ClusterSpec` describes them."""

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field

from stratagem.cluster.jobs import read_jobs
from stratagem.cluster.naming import SPEC
from stratagem.errors import ClusterError


@dataclass(frozen=True, order=True)
class Task:
    """One task of a cluster: its job, its index in the job, its `host:port`."""

    job: str
    index: int
    address: str


@dataclass(frozen=True, repr=False, eq=False)
class ClusterSpec:
    """Which tasks a cluster has, by job and index, and where each of them listens.

    A job is *dense*, a list of addresses, or *sparse*, a mapping from index to address, which lets a task be
    told of some others only. Indices without a gap make a job dense, however it was written. A job may be
    empty. Cluster specs do not change; they are equal, also to a mapping, where they name the same tasks.

    Args:
        cluster: `{job: [addresses]}`, `{job: {index: address}}`, or another `ClusterSpec`.

    Raises:
        ClusterError: if a job name, an index or an address is wrong, or two tasks share an address.

    Example:
        >>> cluster = ClusterSpec({"worker": ["a:2222", "b:2222"], "ps": {1: "c:2222"}})
        >>> cluster.jobs
        ['ps', 'worker']
        >>> cluster.task_address("worker", 1)
        'b:2222'
        >>> cluster.job_tasks("ps")
        [None, 'c:2222']
    """

    cluster: InitVar["ClusterSpec | Mapping[str, Sequence[str] | Mapping[int, str]]"]
    _jobs: dict[str, dict[int, str]] = field(init=False)

    def __post_init__(self, cluster: object) -> None:
        if isinstance(cluster, ClusterSpec):
            jobs = cluster._jobs
        elif isinstance(cluster, Mapping):
            jobs = read_jobs(cluster, SPEC)
        else:
            raise SPEC.error(f"a cluster is a mapping from job names to addresses, not {cluster!r}")
        object.__setattr__(self, "_jobs", jobs)

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs, sorted."""
        return list(self._jobs)

    def tasks(self) -> list[Task]:
        """Every task, by job and index in ascending order."""
        return [Task(job, index, address) for job in self._jobs for index, address in self._jobs[job].items()]

    def num_tasks(self, job_name: str) -> int:
        """How many tasks of `job_name` are known."""
        return len(self._job(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """The indices of the known tasks of `job_name`, ascending."""
        return list(self._job(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """The `host:port` of one task; `Address.parse` splits it."""
        tasks = self._job(job_name)
        if task_index not in tasks:
            raise ClusterError(
                f"job {job_name!r} has no task {task_index!r}; it has "
                f"{', '.join(map(str, tasks)) or 'no task at all'}"
            )
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """The addresses of `job_name` by index, with `None` at indices that are not known."""
        tasks = self._job(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """The cluster as plain data: a list for a dense job, a mapping for a sparse or empty one."""
        return {
            job: list(tasks.values()) if tasks and max(tasks) + 1 == len(tasks) else dict(tasks)
            for job, tasks in self._jobs.items()
        }

    def _job(self, job_name: str) -> dict[int, str]:
        if job_name not in self._jobs:
            raise ClusterError(
                f"the cluster has no job {job_name!r}; it has {', '.join(self._jobs) or 'no job at all'}"
            )
        return self._jobs[job_name]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ClusterSpec):
            return self._jobs == other._jobs
        if isinstance(other, Mapping):
            try:
                return self._jobs == read_jobs(other, SPEC)
            except ClusterError:
                return False
        return NotImplemented

    def __hash__(self) -> int:
        return hash((tuple(self._jobs), tuple(self.tasks())))

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()!r})"
