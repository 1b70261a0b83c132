"""How far every worker of a group has come, as one of them knows, and who may do what next. Pure."""

from collections.abc import Sequence

from stratagem.collectives.failures import Failure, has_left, mismatch, out_of_step
from stratagem.collectives.rounds import Part, Round
from stratagem.collectives.tickets import Operation, Ticket


class Ledger:
    """One worker's book of its group.

    A round has at least one owner, whom every worker must send a part before anybody gets an answer. So nobody is
    ever more than one round ahead of anybody, and there is one round to keep.

    Args:
        tasks: The workers' names, in order.
        index: Which of them this is.
        generation: How often the job has been restarted.
        token: Of this very start of the worker.

    Attributes:
        begun: How many rounds this worker has begun.
        completed: How many of them are over.
        left: Those who have left, and after which round.
        failure: Why the group cannot go on; the first reason stays.
        is_closed: Whether this worker has left.
    """

    def __init__(self, tasks: Sequence[str], index: int, generation: int, token: str) -> None:
        self._tasks = tasks
        self._index = index
        self.generation = generation
        self.token = token
        self.begun = self.completed = 0
        self.left: dict[int, int] = {}
        self.failure: Failure | None = None
        self.is_closed = False
        self._tokens: dict[int, str] = {}
        self._round: Round | None = None

    # Who is who.

    def meet(self, worker: int, generation: int, token: str) -> bool:
        """Another worker has told who it is; whether it belongs to this generation and is no other than before."""
        if generation != self.generation or worker == self._index or not 0 <= worker < len(self._tasks):
            return False
        return self._tokens.setdefault(worker, token) == token

    def has_met(self, worker: int) -> bool:
        """Whether a worker has told who it is."""
        return worker in self._tokens

    # This worker's own rounds.

    def ticket(
        self, operation: Operation, sequence: int, is_empty: bool = False, is_done: bool = False
    ) -> Ticket:
        """This worker's ticket for a round."""
        return Ticket(
            self._index,
            self.generation,
            self.token,
            sequence,
            operation.name,
            operation.digest,
            is_empty,
            is_done,
        )

    def begin(
        self,
        operation: Operation,
        own: Part,
        out: Part,
        owners: Sequence[int],
        *,
        is_empty: bool = False,
        is_done: bool = False,
    ) -> Round | Failure:
        """This worker begins its next round, unless somebody has left who would be needed."""
        ticket = self.ticket(operation, self.begun + 1, is_empty, is_done)
        if self.left:
            worker, after = min(self.left.items())
            return has_left(self._tasks, worker, after, self._index, ticket.place)
        self.begun += 1
        self._round = Round(operation, ticket, own, out, owners, len(self._tasks))
        return self._round

    def complete(self) -> None:
        """The round is over."""
        self.completed = self.begun
        self._round = None

    # The others' calls.

    def refusal(self, ticket: Ticket) -> Failure | None:
        """Why a caller does not belong here: its own affair, not the group's."""
        name = (
            self._tasks[ticket.worker] if 0 <= ticket.worker < len(self._tasks) else f"worker {ticket.worker}"
        )
        here = self._tasks[self._index]
        if ticket.generation != self.generation:
            return Failure(
                "out of step",
                None,
                f"{name} belongs to generation {ticket.generation} of the job, {here} to generation "
                f"{self.generation}. All workers must be started again together: end the older processes",
            )
        if not self.meet(ticket.worker, ticket.generation, ticket.token):
            return Failure(
                "out of step",
                None,
                f"{name} has been started again, but {here} has not. All workers must be started again together, as a "
                "new generation (`stratagem run --max-restarts N` does so by itself)",
            )
        return None

    def admit(self, ticket: Ticket) -> Round | Failure | None:
        """The round that a caller's part is for; `None` if this worker has not begun it yet."""
        if self.is_closed:
            return has_left(self._tasks, self._index, self.completed, ticket.worker, ticket.place)
        if ticket.sequence == self.begun + 1:
            return None
        current = self._round
        if current is None or ticket.sequence != self.begun or current.has(ticket.worker):
            at = f"operation {self.begun}" if current is None else current.ticket.place
            return out_of_step(self._tasks, self._index, at, ticket.worker, ticket.place)
        if ticket.name != current.ticket.name:
            return out_of_step(self._tasks, self._index, current.ticket.place, ticket.worker, ticket.place)
        return current

    def compare(self, current: Round, ticket: Ticket, lines: Sequence[str]) -> Failure:
        """Two workers' operations differ in their digests: say in what."""
        return mismatch(
            self._tasks, self._index, current.operation.lines, ticket.worker, lines, current.ticket.place
        )

    def leave(self, worker: int, after: int) -> Failure | None:
        """A worker will take part in nothing after this round; what is wrong if it is missed already."""
        self.left[worker] = after
        current = self._round
        if current is None or current.ticket.sequence <= after:
            return None
        return has_left(self._tasks, worker, after, self._index, current.ticket.place)
