"""Operations of a group as swaps of messages: every worker sends one to every other, and receives one from each."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NoReturn

from stratagem.collectives.bonds import Bonds
from stratagem.collectives.failures import Failure, has_left, lost, sign_of_loss
from stratagem.collectives.ledger import Ledger
from stratagem.collectives.lines import Lines
from stratagem.collectives.members import Members, Registrar
from stratagem.collectives.tickets import Operation, Ticket
from stratagem.errors import RemoteError
from stratagem.runtime.wire import Reply, Request
from stratagem.runtime.wire.arrays import Array
from stratagem.runtime.wire.channels import Channel, Message, without_lease
from stratagem.runtime.wire.waiting import LOG_EVERY, Stall

_log = logging.getLogger("stratagem")
_AT_ONCE: Final = 32 << 10
"""So many bytes fit into any socket's buffer: to send them waits for nobody."""
_WATCH_SECONDS, _QUICK_SECONDS = 0.0004, 0.0008
"""How long to watch for a message before going to sleep, and how quick the last one must have been for that."""
_SUBJECT: Final = "part"
_SAME: Final = 4
"""So many fields of a ticket must be the same on all workers."""

Parcels = Callable[[int, Channel], Sequence[Array]]
"""What to send to a worker, through this channel."""


class Swapped:
    """What came of a swap.

    Attributes:
        tensors: Every other worker's tensors; read-only, and good until this worker's next swap.
        empty: The workers that add nothing.
        all_done: Whether the data of every worker have ended.
    """

    def __init__(self, own: Ticket, index: int) -> None:
        self.tensors: dict[int, Sequence[Array]] = {}
        self.empty = {index} if own.is_empty else set()
        self.all_done = own.is_done

    def put(self, worker: int, ticket: Ticket, tensors: Sequence[Array]) -> None:
        """Another worker's message has come."""
        self.tensors[worker] = tensors
        self.all_done = self.all_done and ticket.is_done
        if ticket.is_empty:
            self.empty.add(worker)


class Exchange:
    """This worker's end of every operation.

    Args:
        members: The workers.
        registrar: What answers the others' calls.
        ledger: This worker's book.
        bonds: This worker's ties to the others.
        lines: The connections to them.
    """

    def __init__(
        self, members: Members, registrar: Registrar, ledger: Ledger, bonds: Bonds, lines: Lines
    ) -> None:
        self._members = members
        self._ledger = ledger
        self._bonds = bonds
        self._lines = lines
        self._is_quick = True
        self._stall = Stall(members.options.timeout)
        # In this order any two workers come to each other at the same time: nobody waits in a circle.
        self._partners = sorted(members.others, key=lambda worker: (worker + members.index) % members.count)
        registrar.register(members.name_of("describe"), self._handle_describe)

    @contextmanager
    def operation(self, operation: Operation) -> Iterator[None]:
        """One operation, which all workers must begin; its swaps go in the `with`.

        Raises:
            WorkerLost: A worker died, left, or did not answer in time.
            RemoteError: The workers do not do the same thing.
        """
        if self._bonds.has_ended():
            self._bonds.raise_failure()
        with self._bonds.changed:
            failure = self._ledger.begin(operation)
        if failure is not None:
            self._fail(failure)
        try:
            yield
        except BaseException as error:
            why = f"it was interrupted in {self._ledger.place} by {type(error).__name__}"
            self._bonds.fail(lost(self._members.tasks, self._members.index, why))
            raise
        with self._bonds.changed:
            self._ledger.complete()

    def swap(self, parcels: Parcels, *, is_empty: bool = False, is_done: bool = False) -> Swapped:
        """Send every other worker a message, and receive one from each."""
        ticket = self._ledger.take_turn(is_empty, is_done)
        swapped = Swapped(ticket, self._members.index)
        later: dict[int, Sequence[Array]] = {}
        for worker in self._members.others:
            channel = self._lines.to(worker, ticket.turn)
            tensors = parcels(worker, channel)
            if channel.through_socket(tensors) > _AT_ONCE:
                later[worker], tensors = tensors, ()
            self._send(worker, channel, ticket._replace(has_more=worker in later), tensors)
        expected = []
        for worker in self._members.others:
            told, message = self._receive_ticket(worker, ticket)
            swapped.put(worker, told, message.tensors)
            if told.has_more:
                expected.append(worker)
        if later or expected:
            self._swap_more(ticket, later, expected, swapped)
        return swapped

    def _swap_more(
        self, ticket: Ticket, later: dict[int, Sequence[Array]], expected: Sequence[int], swapped: Swapped
    ) -> None:
        """Send and receive what is too much to be sent before the other one reads: all are there by now."""
        for worker in self._partners:
            channel = self._lines.to(worker, ticket.turn)
            is_first = self._members.index < worker
            if is_first and worker in later:
                self._send(worker, channel, ticket, later[worker])
            if worker in expected:
                swapped.tensors[worker] = self._receive(worker, channel).tensors
            if not is_first and worker in later:
                self._send(worker, channel, ticket, later[worker])

    # ---------------------------------------------------------------- messages

    def _send(self, worker: int, channel: Channel, ticket: Ticket, tensors: Sequence[Array]) -> None:
        try:
            channel.send(_SUBJECT, ticket.to_fields(), tensors, self._stall)
        except RemoteError as error:
            self._broken(worker, error)

    def _receive(self, worker: int, channel: Channel) -> Message:
        """A worker's next message, for as long as it is alive and has our patience."""
        began = time.monotonic()
        if self._is_quick:
            channel.stream.spin(_WATCH_SECONDS)
        tasks, patience = self._members.tasks, self._members.options.patience
        while not channel.wait(min(LOG_EVERY, patience), self._bonds.alarm):
            waited = time.monotonic() - began
            if self._bonds.has_ended():
                self._bonds.raise_failure()
            if waited >= patience:
                why = f"it answers, but has not come to the end of {self._ledger.place} within {patience:g} s"
                self._fail(lost(tasks, worker, why))
            _log.warning(
                "waiting for %s to come to %s (%.0f s so far)", tasks[worker], self._ledger.place, waited
            )
        self._is_quick = time.monotonic() - began < _QUICK_SECONDS
        try:
            return channel.receive(self._stall, self._stall, borrow=without_lease)
        except RemoteError as error:
            self._broken(worker, error)

    def _receive_ticket(self, worker: int, own: Ticket) -> tuple[Ticket, Message]:
        """A worker's message of this swap."""
        message = self._receive(worker, self._lines.to(worker, own.turn))
        told = Ticket.from_fields(message.fields)
        if told[:_SAME] != own[:_SAME]:
            failure = self._ledger.compare(own, worker, told)
            self._fail(self._difference(worker) if failure is None else failure)
        return told, message

    # ---------------------------------------------------------------- failures

    def _fail(self, failure: Failure) -> NoReturn:
        self._bonds.fail(failure)
        self._bonds.raise_failure()

    def _broken(self, worker: int, error: RemoteError) -> NoReturn:
        """The connection to a worker broke: it has left, or is lost."""
        tasks = self._members.tasks
        with self._bonds.changed:
            after = self._ledger.left.get(worker)
        if after is None:
            self._fail(lost(tasks, worker, sign_of_loss(error)))
        self._fail(has_left(tasks, worker, after, self._members.index, self._ledger.place))

    def _difference(self, worker: int) -> Failure:
        """Ask a worker what its arrays are, which are not this one's."""
        try:
            lines = self._members.call(worker, "describe", {}).fields["lines"]
        except RemoteError as error:
            return lost(self._members.tasks, worker, sign_of_loss(error))
        return self._ledger.differ(worker, [str(line) for line in lines])

    def _handle_describe(self, request: Request) -> Reply:
        return Reply({"lines": list(self._ledger.operation.lines)})
