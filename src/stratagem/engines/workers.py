"""The processes that train together, as a strategy sees them: how many, which one this is, what they share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem.cluster import ClusterSpec
from stratagem.engines.chief_files import ChiefFiles
from stratagem.errors import RemoteError, TaskLost, TaskUnreachable
from stratagem.runtime import Server
from stratagem.waist.home import PreemptionNotice

Array = np.ndarray[Any, np.dtype[Any]]


class Workers(ABC):
    """The worker processes of a synchronous strategy.

    Attributes:
        index: Which one this is.
        count: How many there are.
        is_chief: Whether this one writes what only one should write.
        cluster: The cluster, if there is one.
        files: The files that all workers save and the chief writes; `None` where one process runs the script.
    """

    index: int
    count: int
    is_chief: bool
    cluster: ClusterSpec | None
    files: ChiefFiles | None

    @abstractmethod
    def gather(self, array: Array) -> Sequence[Array]:
        """Return the arrays of all workers, in the order of their indices."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """Return what the parameter servers report of themselves and of the workers, by task; empty without servers."""

    @abstractmethod
    def close(self) -> None:
        """Leave the other workers, having finished."""


class Alone(Workers):
    """One process that trains with nobody.

    Args:
        cluster: The cluster that it is a task of, if it is one.
        is_chief: Whether it writes what only one should write; not so beside others who train.
    """

    index = 0
    count = 1
    files: ChiefFiles | None = None

    def __init__(self, cluster: ClusterSpec | None = None, is_chief: bool = True) -> None:
        self.cluster = cluster
        self.is_chief = is_chief

    def gather(self, array: Array) -> Sequence[Array]:
        return [array]

    def status(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Do nothing: there is nobody to leave."""


_SECONDS = 1.0
"""For a task to answer."""


class ServerPreemptionNotice(PreemptionNotice):
    """Sends preemption notices from this task's server to the servers of other workers.

    Args:
        server: This task's server.
        receivers: The tasks to notify; this task is left out.
        chief: The task that this one would wait for in vain, without noticing; `None` if it notices.
    """

    def __init__(self, server: Server, receivers: Sequence[str], chief: str | None) -> None:
        self._server = server
        self._receivers = [task for task in receivers if task != server.task]
        self._chief = None if chief == server.task else chief

    @property
    def has_come(self) -> bool:
        return self._server.others_are_asked_to_end

    def send(self) -> None:
        self._server.tell_asked_to_end(self._receivers)

    def has_chief_left(self) -> bool:
        """Return whether the chief has left; a chief that is slow to answer has not."""
        if self._chief is None:
            return False
        try:
            self._server.peers[self._chief].call("ping", timeout=_SECONDS, wait=False)
        except (TaskLost, TaskUnreachable):
            return True
        except RemoteError:
            return False
        return self._server.has_finished(self._chief)
