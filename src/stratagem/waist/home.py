"""Where a state lives while it is trained: with one process, with each of a group of workers, or on parameter servers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import jax
import numpy as np

from stratagem.keep import ShardRecord, TensorEntry
from stratagem.tables.table_files import NO_ROWS, NewRows

if TYPE_CHECKING:
    from stratagem.waist.state import TrainState

T = TypeVar("T")
Shards: TypeAlias = tuple[list[ShardRecord], dict[str, TensorEntry]]
"""The shard files of a checkpoint, and the tensors in them."""


class PreemptionNotice(ABC):
    """Carries the news that a process was asked to end (SIGTERM) between workers that train in step.

    All methods may be called from any thread.
    """

    @property
    @abstractmethod
    def has_come(self) -> bool:
        """Whether another worker has sent this process its notice."""

    @abstractmethod
    def send(self) -> None:
        """Tell the workers that have to know that this process was asked to end."""

    @abstractmethod
    def has_chief_left(self) -> bool:
        """Return whether the chief has left, so that this process would wait for it in vain without noticing."""


class Home(ABC):
    """Where a state lives while it is trained.

    Attributes:
        is_chief: Whether this process writes what only one process should write.
        in_step: Whether every update waits for all workers.
    """

    is_chief: bool
    in_step: bool

    @property
    @abstractmethod
    def workers(self) -> "WorkerHome | None":
        """This home, if each of several workers has all of the state; else `None`."""

    @property
    @abstractmethod
    def servers(self) -> "ServerHome | None":
        """This home, if the state lives on parameter servers; else `None`."""

    @abstractmethod
    def fetch(self, state: "TrainState") -> "TrainState":
        """Return a copy of the whole state in host memory."""

    @abstractmethod
    def preemption_notice(self) -> PreemptionNotice | None:
        """Return what carries preemption notices between the workers; `None` where nobody waits for this process."""


class LocalHome(Home):
    """This process, which trains alone."""

    is_chief = True
    in_step = True
    workers = None
    servers = None

    def fetch(self, state: "TrainState") -> "TrainState":
        return _host_copy(state)

    def preemption_notice(self) -> None:
        """Return `None`: there are no other workers."""


class WorkerHome(Home):
    """A group of workers that train in step, each with all of the state."""

    in_step = True
    servers = None

    @property
    def workers(self) -> "WorkerHome":
        return self

    @abstractmethod
    def gather(self, array: Any) -> Sequence[Any]:
        """Return the arrays of all workers, the chief's first; their shapes may differ."""

    @abstractmethod
    def ready(self, value: T) -> T:
        """Return what steps compute, once it is there, and whole.

        All workers call this together where each has only a part of the value.

        Raises:
            WorkerLost: It will never be there, as a worker is lost.
        """

    def fetch(self, state: "TrainState") -> "TrainState":
        return _host_copy(self.ready(state))


class ServerHome(Home):
    """Parameter servers: what is here of a state is its parameters and this worker's own non-trained state.

    Attributes:
        form: The whole state, with shapes and dtypes in place of arrays.
    """

    form: "TrainState"
    workers = None

    def __init__(self, state: "TrainState") -> None:
        self.form = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
        self._before_closing: list[Callable[[], object]] = []

    @property
    def servers(self) -> "ServerHome":
        return self

    @property
    @abstractmethod
    def has_pushed(self) -> bool:
        """Whether this process has taken part in the training."""

    @abstractmethod
    def renew(self, state: "TrainState") -> "TrainState":
        """Return the state with the values that the servers have now."""

    @abstractmethod
    def assign(self, state: "TrainState", step: int | None = None, rows: NewRows = NO_ROWS) -> None:
        """Set values on the servers: all at once, between two updates.

        Args:
            state: The values. `None` in place of an array leaves that array unchanged, and non-trained state of a
                worker's own is ignored.
            step: The step from which training goes on with these values; pushes under way are void then. `None`
                leaves the step unchanged.
            rows: New rows of tables.

        Raises:
            StrategyError: This worker is not the chief.
        """

    @abstractmethod
    def save(self, root: str, make: Callable[[int], bool]) -> tuple[int, Callable[[], Shards] | None]:
        """Have the servers write what they hold, as of one step, into a checkpoint.

        Args:
            root: The directory of all checkpoints.
            make: Called with the step. It makes the directory of that checkpoint, or returns `False` if the checkpoint
                is not wanted.

        Returns:
            The step, and a function that waits until everything is written and returns the shards and their contents;
            `None` instead of the function if the checkpoint is not wanted or the servers cannot reach the directory.
        """

    @abstractmethod
    def post_notice(self, topic: str, notice: bytes) -> None:
        """Leave a notice for the other workers; the chief's counterpart of `wait_for_notice`."""

    @abstractmethod
    def wait_for_notice(self, topic: str) -> bytes | None:
        """Wait for the chief's next notice on a topic; `None` if the others were past it when this worker came."""

    def before_closing(self, callback: Callable[[], object]) -> None:
        """Have a function called before this process disconnects from the servers."""
        if callback not in self._before_closing:
            self._before_closing.append(callback)

    def _call_before_closing(self) -> None:
        while self._before_closing:
            self._before_closing.pop()()


def _host_copy(state: "TrainState") -> "TrainState":
    copy: TrainState = jax.tree.map(np.array, state)
    return copy
