"""All the tasks of a cluster that one process may call, by name; a connection is made when first needed."""

import threading

from stratagem.cluster import ClusterSpec
from stratagem.devices import DeviceSpec
from stratagem.errors import ClusterError, TaskLost
from stratagem.runtime.wire import Credentials, Peer


def task_name(job: str, index: int) -> str:
    """The name of a task: `/job:ps/task:0`."""
    return DeviceSpec(job=job, task=index).to_string()


class Peers:
    """The cluster's tasks, as peers to call.

    Args:
        cluster: Where they are.
        credentials: The cluster's secret and TLS files.
        caller: The name of this side.
        run: The run that all of them belong to, as far as they know of one.

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
        """Where a task listens."""
        return self._addresses[task]

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            self._is_closed = True
            for peer in self._peers.values():
                peer.close()
