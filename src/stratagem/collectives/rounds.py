"""One round of an operation at one worker: whose part has come, and what is to be done next. Pure."""

from collections.abc import Sequence

from stratagem.collectives.tickets import Operation, Ticket
from stratagem.runtime.wire.arrays import Array


class Round:
    """What this worker gathers in one round: a part from every worker, its own included.

    Parts may be taken back as long as not all are there. Whoever brings the last one of a reduction sums them;
    `is_summed` then tells the others.

    Args:
        operation: What is done.
        ticket: This worker's own place.
        own: This worker's own part; nothing is taken from it if the ticket says that it is empty.
        out: Where to write the sum of the parts.
        workers: How many workers there are.
    """

    def __init__(
        self, operation: Operation, ticket: Ticket, own: Sequence[Array], out: Sequence[Array], workers: int
    ) -> None:
        self.operation = operation
        self.ticket = ticket
        self.out = out
        self.is_summed = False
        self._workers = workers
        self._tickets = {ticket.worker: ticket}
        self._parts: dict[int, Sequence[Array]] = {ticket.worker: own}
        self._answered = {ticket.worker}

    def put(self, ticket: Ticket, part: Sequence[Array]) -> None:
        """A worker's part has come."""
        self._tickets[ticket.worker] = ticket
        self._parts[ticket.worker] = part

    def withdraw(self, worker: int) -> bool:
        """A worker wants its part back; whether it is not too late for that."""
        if self.is_full:
            return False
        self._tickets.pop(worker, None)
        self._parts.pop(worker, None)
        return True

    def has(self, worker: int) -> bool:
        """Whether this worker's part is there."""
        return worker in self._parts

    @property
    def is_full(self) -> bool:
        """Whether all parts are there."""
        return len(self._parts) == self._workers

    def answered(self, worker: int) -> None:
        """A worker has taken this worker's part, and sent its sum if it is a reduction."""
        self._answered.add(worker)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be done in it, here."""
        is_here = self.is_summed if self.operation.is_reduction else self.is_full
        return is_here and len(self._answered) == self._workers

    @property
    def missing(self) -> list[int]:
        """The workers whose parts or answers have not come."""
        return [
            worker
            for worker in range(self._workers)
            if worker not in self._parts or worker not in self._answered
        ]

    def parts(self) -> list[Sequence[Array]]:
        """The parts of those who have something to add, in the order of the workers."""
        return [self._parts[worker] for worker in sorted(self._parts) if not self._tickets[worker].is_empty]

    def all_parts(self) -> list[Sequence[Array]]:
        """The part of every worker, in order."""
        return [self._parts[worker] for worker in sorted(self._parts)]

    @property
    def all_done(self) -> bool:
        """Whether the data of every worker have ended."""
        return all(ticket.is_done for ticket in self._tickets.values())
