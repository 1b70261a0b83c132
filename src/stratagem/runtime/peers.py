"""The tasks of a cluster: their names, their devices, and calls to them."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from stratagem.cluster import Address, ClusterSpec
from stratagem.devices import DeviceSpec
from stratagem.errors import (
    ClusterError,
    DeadlineExceeded,
    DeviceSpecError,
    StratagemError,
    TaskLost,
    TaskUnreachable,
)
from stratagem.runtime.wire import Credentials, Fields, Peer

_PING_SECONDS = 5.0


def task_name(job: str, index: int) -> str:
    """Return the name of a task: `/job:ps/task:0`."""
    return DeviceSpec(job=job, task=index).to_string()


def is_worker(task: str) -> bool:
    """Return whether the job is done only when this task has finished: whether it is a worker or the chief."""
    return task.startswith(("/job:worker/", "/job:chief/"))


def leader_of(tasks: Sequence[str]) -> str:
    """Return the task that hears every other's heartbeat."""
    for job in ("ps", "chief", "worker"):
        if (leader := task_name(job, 0)) in tasks:
            return leader
    return tasks[0]


def with_port(cluster: ClusterSpec, job: str, index: int, port: int) -> ClusterSpec:
    """Return the cluster with a task's real port, in case the task asked for any free one."""
    jobs = {name: dict.fromkeys(cluster.task_indices(name), "") for name in cluster.jobs}
    for task in cluster.tasks():
        jobs[task.job][task.index] = task.address
    jobs[job][index] = str(Address(Address.parse(jobs[job][index]).host, port))
    return ClusterSpec(jobs)


def cluster_to_fields(cluster: ClusterSpec) -> Fields:
    """Return the cluster in plain values."""
    return {
        job: [[index, cluster.task_address(job, index)] for index in cluster.task_indices(job)]
        for job in cluster.jobs
    }


def cluster_from_fields(fields: Fields) -> ClusterSpec:
    """Return the cluster that `cluster_to_fields` made plain values of."""
    return ClusterSpec({job: dict(tasks) for job, tasks in fields.items()})


@dataclass(frozen=True)
class TaskDevice:
    """A task by name and one of its devices (`/device:CPU:0`); an empty device leaves the choice to the task."""

    task: str
    device: str

    @classmethod
    def of(cls, spec: DeviceSpec, default_task: str) -> "TaskDevice":
        """Return the task and device that a device specification means.

        Example:
            >>> TaskDevice.of(DeviceSpec.from_string("/job:ps/gpu:1"), "/job:worker/task:0")
            TaskDevice(task='/job:ps/task:0', device='/device:GPU:1')
        """
        if spec.replica not in (None, 0):
            raise DeviceSpecError(
                f"{spec.to_string()!r} names replica {spec.replica}; a cluster has replica 0 only"
            )
        if spec.job is None and spec.task is not None:
            raise DeviceSpecError(
                f"{spec.to_string()!r} names a task but no job; write /job:worker/task:{spec.task}"
            )
        task = default_task if spec.job is None else task_name(spec.job, spec.task or 0)
        inner = DeviceSpec(device_type=spec.device_type, device_index=spec.device_index)
        return cls(task, inner.to_string())


class Peers:
    """The cluster's tasks, as peers to call.

    Args:
        cluster: The addresses of the tasks.
        credentials: The cluster's secret and TLS files.
        caller: The name of this side.
        run: The run of `stratagem run` that all of them belong to, if there is one.

    Example:
        >>> peers = Peers(ClusterSpec({"ps": ["127.0.0.1:2222"]}), Credentials(), caller="a client")
        >>> peers["/job:ps/task:0"].call("ping")
    """

    def __init__(
        self, cluster: ClusterSpec, credentials: Credentials, caller: str, run: str | None = None
    ) -> None:
        self._credentials = credentials
        self._caller = caller
        self._run = run
        self._addresses = {task_name(task.job, task.index): task.address for task in cluster.tasks()}
        self._peers: dict[str, Peer] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def tasks(self) -> list[str]:
        """The names of all tasks."""
        return list(self._addresses)

    def __getitem__(self, task: str) -> Peer:
        with self._lock:
            if self._is_closed:
                raise TaskLost(f"{task} cannot be called any more: this session or server is closed")
            if task not in self._peers:
                if task not in self._addresses:
                    raise ClusterError(
                        f"the cluster has no task {task!r}; it has {', '.join(self._addresses)}"
                    )
                self._peers[task] = Peer(
                    self._addresses[task], task, self._credentials, caller=self._caller, run=self._run
                )
            return self._peers[task]

    def address(self, task: str) -> str:
        """Return where a task listens."""
        return self._addresses[task]

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            self._is_closed = True
            for peer in self._peers.values():
                peer.close()


def is_lost(peer: Peer, error: BaseException) -> bool:
    """Return whether a task is gone, as far as the error of a call to it tells; otherwise the call has failed there."""
    if not isinstance(error, TaskLost | TaskUnreachable | DeadlineExceeded):
        return False
    if error.remote_traceback is None and not isinstance(error, DeadlineExceeded):
        return True
    # The error is about a third task that this one has lost, or the call takes long: then it still answers another.
    try:
        peer.call("ping", timeout=_PING_SECONDS, wait=False)
    except StratagemError:
        return True
    return False
