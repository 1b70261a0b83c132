"""How a worker that is asked to end lets those know who train in step with it: by their servers."""

from collections.abc import Sequence

from stratagem.errors import RemoteError, TaskLost, TaskUnreachable
from stratagem.runtime import Server

_SECONDS = 1.0
"""For a task to answer."""


class ServerParting:
    """The others, as their servers are reached from this task's.

    Args:
        server: This task's server.
        told: Whom to tell; this task is left out.
        chief: Whom this task would wait for in vain, and not notice; `None`: it notices.
    """

    def __init__(self, server: Server, told: Sequence[str], chief: str | None) -> None:
        self._server = server
        self._told = [task for task in told if task != server.task]
        self._chief = None if chief == server.task else chief

    @property
    def is_asked(self) -> bool:
        """See `Parting`."""
        return self._server.others_are_asked_to_end

    def tell(self) -> None:
        """See `Parting`."""
        self._server.tell_asked_to_end(self._told)

    def is_alone(self) -> bool:
        """See `Parting`; a chief that is slow to answer is there."""
        if self._chief is None:
            return False
        try:
            self._server.peers[self._chief].call("ping", timeout=_SECONDS, wait=False)
        except (TaskLost, TaskUnreachable):
            return True
        except RemoteError:
            return False
        return self._server.has_finished(self._chief)
