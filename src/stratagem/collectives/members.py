"""The workers of a group and how to call them: what every part of the group needs to know."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stratagem.collectives.options import GroupOptions
from stratagem.errors import StrategyError
from stratagem.runtime.wire import Handler, Peer, Response


class Registrar(Protocol):
    """What answers calls from other tasks: a `Server`, or a bare listener."""

    def register(self, name: str, handler: Handler) -> None:
        """Answer calls of that name with a function."""


class PeerSource(Protocol):
    """What gives peers to call, by task name: `Peers`."""

    def __getitem__(self, task: str) -> Peer:
        """The peer of that name."""


@dataclass(frozen=True)
class Members:
    """The workers of one group.

    Attributes:
        name: The group's name, the same on all workers.
        tasks: The workers' task names, in the order in which their parts are summed.
        index: Which of them this is.
        peers: For calling them.
        options: What all agree on.
        others: All indices but this one's.
    """

    name: str
    tasks: Sequence[str]
    index: int
    peers: PeerSource = field(repr=False)
    options: GroupOptions
    others: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.index < len(self.tasks):
            raise StrategyError(
                f"worker {self.index} of a group of {len(self.tasks)}: give the index of this process among "
                f"{', '.join(self.tasks) or 'at least one task'}"
            )
        if len(set(self.tasks)) != len(self.tasks):
            raise StrategyError(f"a task is listed twice among the workers {', '.join(self.tasks)}")
        others = tuple(worker for worker in range(len(self.tasks)) if worker != self.index)
        object.__setattr__(self, "others", others)

    @property
    def count(self) -> int:
        """How many workers there are."""
        return len(self.tasks)

    @property
    def interval(self) -> float:
        """Seconds after which a handler that waits gives a sign of life."""
        return min(1.0, self.options.timeout / 4)

    def name_of(self, call: str) -> str:
        """What a call of this group is called on the wire."""
        return f"collectives.{self.name}.{call}"

    def call(
        self,
        worker: int,
        call: str,
        fields: Mapping[str, Any],
        *,
        timeout: float | None = None,
    ) -> Response:
        """Call another worker, which must be up."""
        seconds = self.options.timeout if timeout is None else timeout
        return self.peers[self.tasks[worker]].call(self.name_of(call), fields, timeout=seconds, wait=False)
