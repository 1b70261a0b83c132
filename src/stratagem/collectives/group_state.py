"""One worker's knowledge of its group: identities, operations and departures, and what differs between workers. Pure."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stratagem.collectives.group_failure import GroupFailure, arrays_differ, out_of_step, worker_left
from stratagem.errors import ProtocolError
from stratagem.runtime.wire import Fields

_DIGEST_BYTES = 16
_HEADER_TYPES = [int, int, str, bytes, bool, bool, bool]


@dataclass(frozen=True)
class Operation:
    """An operation on certain arrays, which must be the same on every worker.

    Attributes:
        name: `all_reduce`, `all_gather`, `broadcast` or `barrier`.
        arguments: Its arrays and options in words. Workers compare digests, and these only if the digests differ.
    """

    name: str
    arguments: tuple[str, ...] = ()
    digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        text = "\n".join((self.name, *self.arguments)).encode()
        object.__setattr__(self, "digest", hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest())


class SwapHeader(NamedTuple):
    """Goes with each message of a swap: where the worker is, and what it is doing.

    Attributes:
        sequence: How many operations it has begun, this one included.
        turn: How many swaps it has begun, this one included. An operation is one swap or several.
        name: The operation's name.
        digest: The operation's digest.
        is_empty: Whether the worker adds nothing.
        is_done: Whether its data have ended.
        has_more: Whether its tensors come in a further message, once the other worker is known to be there.
    """

    sequence: int
    turn: int
    name: str
    digest: bytes
    is_empty: bool = False
    is_done: bool = False
    has_more: bool = False

    @classmethod
    def from_fields(cls, fields: Fields) -> "SwapHeader":
        """Return the header that came with a message.

        Raises:
            ProtocolError: The message has none.
        """
        values = fields.get("header")
        if not isinstance(values, list) or [type(value) for value in values] != _HEADER_TYPES:
            raise ProtocolError(f"a message without a swap header: {values!r:.200}")
        return cls(*values)

    def to_fields(self) -> Fields:
        """Return the header as a message's plain fields."""
        return {"header": self}

    @property
    def place(self) -> str:
        """The worker's place, in words."""
        return f"operation {self.sequence} ({self.name})"


class GroupState:
    """One worker's knowledge of its group.

    Args:
        tasks: The workers' names, in order.
        index: The index of this worker.
        generation: How often the job has been restarted.
        token: Identifies this start of the worker.

    Attributes:
        begun: How many operations this worker has begun.
        completed: How many of them are over.
        operation: The latest one.
        left: The workers that have left, each with its last operation.
        failure: Why the group cannot go on. The first reason stays.
        is_closed: Whether this worker has left.
    """

    def __init__(self, tasks: Sequence[str], index: int, generation: int, token: str) -> None:
        self._tasks = tasks
        self._index = index
        self.generation = generation
        self.token = token
        self.begun = self.completed = self._turns = 0
        self.operation = Operation("nothing")
        self.left: dict[int, int] = {}
        self.failure: GroupFailure | None = None
        self.is_closed = False
        self._tokens: dict[int, str] = {}

    def identify(self, worker: int, generation: int, token: str) -> bool:
        """Record another worker's identity. Return False if it is of another generation, or has changed."""
        if generation != self.generation or worker == self._index or not 0 <= worker < len(self._tasks):
            return False
        return self._tokens.setdefault(worker, token) == token

    def has_identified(self, worker: int) -> bool:
        """Return whether a worker's identity is known."""
        return worker in self._tokens

    @property
    def has_ended(self) -> bool:
        """True if nothing more can be done in this group."""
        return self.failure is not None or self.is_closed

    @property
    def place(self) -> str:
        """This worker's place, in words."""
        return f"operation {self.begun} ({self.operation.name})"

    def begin(self, operation: Operation) -> GroupFailure | None:
        """Begin this worker's next operation. Return a failure if a worker that it needs has left."""
        self.begun += 1
        self.operation = operation
        if not self.left:
            return None
        worker, after = min(self.left.items())
        return worker_left(self._tasks, worker, after, self._index, self.place)

    def next_swap(self, is_empty: bool = False, is_done: bool = False) -> SwapHeader:
        """Return the header of this worker's next swap."""
        self._turns += 1
        operation = self.operation
        return SwapHeader(self.begun, self._turns, operation.name, operation.digest, is_empty, is_done)

    def complete(self) -> None:
        """End the operation."""
        self.completed = self.begun

    def compare(self, own: SwapHeader, worker: int, other: SwapHeader) -> GroupFailure | None:
        """Return a failure if another worker is elsewhere than this one, or does something else."""
        if (other.sequence, other.turn, other.name) == (own.sequence, own.turn, own.name):
            return None
        if (other.sequence, other.name) == (own.sequence, own.name) and other.digest != own.digest:
            return None  # other arrays may need another number of turns
        return out_of_step(self._tasks, self._index, own.place, worker, other.place)

    def difference(self, worker: int, arguments: Sequence[str]) -> GroupFailure:
        """Return the failure that another worker runs the same operation with different arrays."""
        return arrays_differ(
            self._tasks, self._index, self.operation.arguments, worker, arguments, self.place
        )

    def leave(self, worker: int, after: int) -> GroupFailure | None:
        """Record that a worker leaves after an operation. Return a failure if it is already missed."""
        self.left[worker] = after
        if self.begun <= max(after, self.completed):
            return None
        return worker_left(self._tasks, worker, after, self._index, self.place)
