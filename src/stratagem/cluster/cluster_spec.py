"""The tasks of a cluster and their addresses, as TensorFlow's `tf.train.ClusterSpec` describes them."""

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field

from stratagem.cluster.address import Address
from stratagem.cluster.wording import SPEC, Wording
from stratagem.errors import ClusterError

_JOB_NAME = re.compile(r"[a-zA-Z][_a-zA-Z0-9]*")


@dataclass(frozen=True, order=True)
class Task:
    """One task of a cluster: its job, its index in the job, its `host:port`."""

    job: str
    index: int
    address: str


@dataclass(frozen=True, repr=False, eq=False)
class ClusterSpec:
    """The tasks of a cluster, by job and index, and where each of them listens.

    A job is *dense*, a list of addresses, or *sparse*, a mapping from index to address, where a task knows only some
    others. Indices without a gap make a job dense, however it was written. A job may be empty. Cluster specs are
    immutable; they are equal, also to a mapping, if they name the same tasks.

    Args:
        cluster: `{job: [addresses]}`, `{job: {index: address}}`, or another `ClusterSpec`.

    Raises:
        ClusterError: A job name, an index or an address is wrong, or two tasks share an address.

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
        """Return every task, by job and index in ascending order."""
        return [Task(job, index, address) for job in self._jobs for index, address in self._jobs[job].items()]

    def num_tasks(self, job_name: str) -> int:
        """Return how many tasks of a job are known."""
        return len(self._job(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """Return the indices of the known tasks of a job, ascending."""
        return list(self._job(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """Return the `host:port` of one task; `Address.parse` splits it."""
        tasks = self._job(job_name)
        if task_index not in tasks:
            raise ClusterError(
                f"job {job_name!r} has no task {task_index!r}; it has "
                f"{', '.join(map(str, tasks)) or 'no task at all'}"
            )
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """Return the addresses of a job by index, with `None` at indices that are not known."""
        tasks = self._job(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """Return the cluster as plain data: a list for a dense job, a mapping for a sparse or empty one."""
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


def read_jobs(cluster: Mapping[str, object], wording: Wording) -> dict[str, dict[int, str]]:
    """Read `{job: [addresses]}` or `{job: {index: address}}`.

    Args:
        cluster: The mapping; its parts may be anything, as they come from a user.
        wording: The names of its parts in messages.

    Returns:
        Address by index by job, jobs and indices in ascending order.

    Raises:
        ClusterError: A job name, index or address is wrong, or two tasks share an address.
    """
    jobs = {_read_job_name(job, wording): _read_tasks(job, tasks, wording) for job, tasks in cluster.items()}
    _refuse_shared_addresses(jobs, wording)
    return {job: dict(sorted(jobs[job].items())) for job in sorted(jobs)}


def _read_job_name(job: object, wording: Wording) -> str:
    if isinstance(job, str) and _JOB_NAME.fullmatch(job):
        return job
    raise wording.error(f"{job!r} is not a job name: use letters, digits and _, beginning with a letter")


def _read_tasks(job: str, tasks: object, wording: Wording) -> dict[int, str]:
    where = wording.job(job)
    if isinstance(tasks, str):
        entries = [entry.strip() for entry in tasks.split(",")]
        raise wording.error(f"{where} is the text {tasks!r}; write a list of addresses: {entries!r}")
    if isinstance(tasks, Mapping):
        indexed = [(_read_index(job, index, wording), address) for index, address in tasks.items()]
    elif isinstance(tasks, Sequence):
        indexed = list(enumerate(tasks))
    else:
        raise wording.error(
            f"{where} is {tasks!r}; write a list of addresses, or a mapping from task index to address"
        )
    return {index: _read_address(job, index, address, wording) for index, address in indexed}


def _read_index(job: str, index: object, wording: Wording) -> int:
    where = f"an index in {wording.job(job)}"
    if isinstance(index, bool | str) or not hasattr(index, "__index__"):
        raise wording.error(
            f"{where} is {index!r}, of type {type(index).__name__}; indices are integers: 0, 1, 2, …"
        )
    number = operator.index(index)
    if number < 0:
        raise wording.error(f"{where} is {number}; indices are integers from 0 up")
    return number


def _read_address(job: str, index: int, address: object, wording: Wording) -> str:
    where = wording.task(job, index)
    if not isinstance(address, str):
        raise wording.error(f"{where} is {address!r}; an address is text, as in 'node1:2222'")
    try:
        Address.parse(address)
    except ClusterError as problem:
        raise wording.error(f"{where}: {problem}") from None
    return address


def _refuse_shared_addresses(jobs: Mapping[str, Mapping[int, str]], wording: Wording) -> None:
    owners: dict[Address, str] = {}
    for job, tasks in jobs.items():
        for index, text in tasks.items():
            address = Address.parse(text)
            if address.port == 0:
                continue
            where = wording.task(job, index)
            owner = owners.setdefault(Address(address.host.casefold(), address.port), where)
            if owner != where:
                raise wording.error(
                    f"{owner} and {where} are both {text!r}; every task needs its own address"
                )
