"""One round of an operation at one worker: whose part has come, and what is to be done next. Pure."""

from collections.abc import Sequence

from stratagem.collectives.tickets import Operation, Ticket
from stratagem.runtime.wire.arrays import Array

Part = Sequence[Array]


class Round:
    """What this worker does in one round.

    It sends a part to every *owner*, who puts together what all have sent and answers with the outcome. If it is
    an owner itself, it awaits a part from every other worker; a part may be taken back as long as not all are
    there. Whoever brings the last one puts them together; `is_combined` then tells the others.

    Args:
        operation: What is done.
        ticket: This worker's own place.
        own: What this worker would send to itself, if it is an owner.
        out: Where sums go if it is one.
        owners: The owners.
        workers: How many workers there are.

    Attributes:
        outcome: All parts put together, if this worker is an owner.
        sizes: How many arrays of the outcome come from which worker, where parts are put side by side.
        all_done: Whether the data of every worker have ended.
        is_combined: Whether what this worker owns has been put together.
    """

    def __init__(
        self,
        operation: Operation,
        ticket: Ticket,
        own: Part,
        out: Part,
        owners: Sequence[int],
        workers: int,
    ) -> None:
        self.operation = operation
        self.ticket = ticket
        self.outcome: Part = out
        self.sizes: list[int] = []
        self.all_done = ticket.is_done
        self.is_owner = ticket.worker in owners
        self.is_combined = not self.is_owner
        self._workers = workers
        self._tickets = {ticket.worker: ticket}
        self._parts: dict[int, Part] = {ticket.worker: own}
        self._unanswered = {owner for owner in owners if owner != ticket.worker}
        self._unsent = workers - 1 if self.is_owner else 0

    # What others send.

    def put(self, ticket: Ticket, part: Part) -> bool:
        """A worker's part has come; whether it is the last."""
        self._tickets[ticket.worker] = ticket
        self._parts[ticket.worker] = part
        self.all_done = self.all_done and ticket.is_done
        return self.is_full

    def withdraw(self, worker: int) -> bool:
        """A worker wants its part back; whether it is not too late for that."""
        if self.is_full:
            return False
        self._tickets.pop(worker, None)
        self._parts.pop(worker, None)
        self.all_done = all(ticket.is_done for ticket in self._tickets.values())
        return True

    def has(self, worker: int) -> bool:
        """Whether this worker's part is there."""
        return worker in self._parts

    @property
    def is_full(self) -> bool:
        """Whether all parts are there."""
        return len(self._parts) == self._workers

    def parts(self) -> list[Part]:
        """The parts of those who have something to add, in the order of the workers."""
        return [self._parts[worker] for worker in sorted(self._parts) if not self._tickets[worker].is_empty]

    def combined(self, outcome: Part, sizes: list[int]) -> None:
        """All parts have been put together."""
        self.outcome, self.sizes, self.is_combined = outcome, sizes, True
        self._parts = dict.fromkeys(self._parts, ())  # views of other workers' memory, which they want back

    def sent(self) -> None:
        """One more worker has been sent the outcome."""
        self._unsent -= 1

    # What others answer.

    def answered(self, owner: int, all_done: bool) -> None:
        """An owner has sent its outcome."""
        self._unanswered.discard(owner)
        self.all_done = all_done

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be done in it, here: the others, too, have what they need from this worker."""
        return self.is_combined and not self._unanswered and self._unsent <= 0

    @property
    def missing(self) -> list[int]:
        """The workers whose parts or answers have not come."""
        waited_for = range(self._workers) if self.is_owner else ()
        return sorted({worker for worker in waited_for if worker not in self._parts} | self._unanswered)
