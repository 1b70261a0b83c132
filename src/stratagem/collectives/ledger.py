"""How far every worker of a group has come, as one of them knows, and what it means when they differ. Pure."""

from collections.abc import Sequence

from stratagem.collectives.failures import Failure, has_left, mismatch, out_of_step
from stratagem.collectives.tickets import Operation, Ticket

_NOTHING = Operation("nothing")


class Ledger:
    """One worker's book of its group.

    Args:
        tasks: The workers' names, in order.
        index: Which of them this is.
        generation: How often the job has been restarted.
        token: Of this very start of the worker.

    Attributes:
        begun: How many operations this worker has begun.
        completed: How many of them are over.
        operation: The one that was begun last.
        left: Those who have left, and after which operation.
        failure: Why the group cannot go on; the first reason stays.
        is_closed: Whether this worker has left.
    """

    def __init__(self, tasks: Sequence[str], index: int, generation: int, token: str) -> None:
        self._tasks = tasks
        self._index = index
        self.generation = generation
        self.token = token
        self.begun = self.completed = self._turns = 0
        self.operation = _NOTHING
        self.left: dict[int, int] = {}
        self.failure: Failure | None = None
        self.is_closed = False
        self._tokens: dict[int, str] = {}

    # Who is who.

    def meet(self, worker: int, generation: int, token: str) -> bool:
        """Another worker has told who it is; whether it belongs to this generation and is no other than before."""
        if generation != self.generation or worker == self._index or not 0 <= worker < len(self._tasks):
            return False
        return self._tokens.setdefault(worker, token) == token

    def has_met(self, worker: int) -> bool:
        """Whether a worker has told who it is."""
        return worker in self._tokens

    # This worker's own operations.

    @property
    def place(self) -> str:
        """Where this worker stands, in words."""
        return f"operation {self.begun} ({self.operation.name})"

    def begin(self, operation: Operation) -> Failure | None:
        """This worker begins its next operation; what is wrong if somebody has left who would be needed."""
        self.begun += 1
        self.operation = operation
        if not self.left:
            return None
        worker, after = min(self.left.items())
        return has_left(self._tasks, worker, after, self._index, self.place)

    def take_turn(self, is_empty: bool = False, is_done: bool = False) -> Ticket:
        """This worker's ticket for its next swap."""
        self._turns += 1
        operation = self.operation
        return Ticket(self.begun, self._turns, operation.name, operation.digest, is_empty, is_done)

    def complete(self) -> None:
        """The operation is over."""
        self.completed = self.begun

    # The others.

    def compare(self, own: Ticket, worker: int, told: Ticket) -> Failure | None:
        """What is wrong if another worker is elsewhere than this one, or does something else."""
        if (told.sequence, told.turn, told.name) == (own.sequence, own.turn, own.name):
            return None
        if (told.sequence, told.name) == (own.sequence, own.name) and told.digest != own.digest:
            return None  # other arrays may need another number of turns
        return out_of_step(self._tasks, self._index, own.place, worker, told.place)

    def differ(self, worker: int, lines: Sequence[str]) -> Failure:
        """Two workers do the same with different arrays: say in what."""
        return mismatch(self._tasks, self._index, self.operation.lines, worker, lines, self.place)

    def leave(self, worker: int, after: int) -> Failure | None:
        """A worker will take part in nothing after this operation; what is wrong if it is missed already."""
        self.left[worker] = after
        if self.begun <= max(after, self.completed):
            return None
        return has_left(self._tasks, worker, after, self._index, self.place)
