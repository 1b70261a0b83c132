"""The workers of a group: who they are, what they agree on, and how one calls another."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from stratagem.errors import StrategyError
from stratagem.runtime.peers import Peers
from stratagem.runtime.wire import Listener, Response

if TYPE_CHECKING:
    from stratagem.runtime import Server

CallRegistry: TypeAlias = "Server | Listener"
"""Answers calls of other tasks with the functions that are registered for them."""


@dataclass(frozen=True)
class GroupOptions:
    """Sizes and times that all workers of a group agree on.

    Attributes:
        bytes_per_pack: Arrays are sent in packs of about this many bytes; 0 means in one pack.
        timeout: Seconds without a sign of life after which a worker is lost. One that dies is noticed at once.
        patience: Seconds that a worker which is alive may keep the others waiting, for its compiler or its disk.
            Meanwhile the log names it.
        forming: Seconds for all workers to start and find each other.

    Example:
        >>> GroupOptions(timeout=5).timeout
        5
    """

    bytes_per_pack: int = 0
    timeout: float = 30.0
    patience: float = 600.0
    forming: float = 300.0

    def __post_init__(self) -> None:
        size = self.bytes_per_pack
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise StrategyError(f"bytes_per_pack is {size!r}; give a number of bytes, or 0 for one pack")
        for name in ("timeout", "patience", "forming"):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
                raise StrategyError(f"{name} is {seconds!r}; give a number of seconds greater than 0")
        if math.isinf(self.timeout):
            raise StrategyError("timeout is infinite; a worker that froze would then never be noticed")


@dataclass(frozen=True)
class Members:
    """The workers of one group.

    Attributes:
        name: The group's name, the same on all workers.
        tasks: The workers' task names, in the order in which their arrays are summed.
        index: The index of this worker among them.
        peers: The connections for calling them.
        options: What all workers agree on.
        others: The indices of all other workers.
    """

    name: str
    tasks: Sequence[str]
    index: int
    peers: Peers = field(repr=False)
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
        """The number of workers."""
        return len(self.tasks)

    @property
    def interval(self) -> float:
        """Seconds after which a handler that waits gives a sign of life."""
        return min(1.0, self.options.timeout / 4)

    def name_of(self, call: str) -> str:
        """Return the name on the wire of a call between members of this group."""
        return f"collectives.{self.name}.{call}"

    def call(
        self, worker: int, call: str, fields: Mapping[str, Any], *, timeout: float | None = None
    ) -> Response:
        """Call another worker, which must be up."""
        seconds = self.options.timeout if timeout is None else timeout
        return self.peers[self.tasks[worker]].call(self.name_of(call), fields, timeout=seconds, wait=False)
