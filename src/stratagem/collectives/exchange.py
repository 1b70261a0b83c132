"""Carries out rounds between the workers of a group: sends parts, answers those that come.

In each round every worker sends a part to the owners, who answer with the outcome. A part waits at an owner until
all have come, with a sign of life every second; so a call that stays unanswered is a worker lost.
"""

import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np

from stratagem.collectives.bonds import DESCRIBE, FAILED, NOT_YET, STATE, TAKEN, Bonds, failed, first_line
from stratagem.collectives.failures import Failure, lost
from stratagem.collectives.ledger import Ledger
from stratagem.collectives.members import Members, Registrar
from stratagem.collectives.rounds import Part, Round
from stratagem.collectives.sums import sum_in_order
from stratagem.collectives.tickets import Operation, Ticket
from stratagem.errors import ProtocolError, RemoteError
from stratagem.runtime.wire import Fields, Reply, Request

_log = logging.getLogger("stratagem")
_LOG_EVERY: Final = 5.0


class Exchange:
    """This worker's end of every round.

    Args:
        members: The workers.
        registrar: What answers the others' calls.
        ledger: This worker's book.
        bonds: This worker's ties to the others.
    """

    def __init__(self, members: Members, registrar: Registrar, ledger: Ledger, bonds: Bonds) -> None:
        self._members = members
        self._ledger = ledger
        self._bonds = bonds
        self._changed, self._over = bonds.changed, bonds.over
        registrar.register(members.name_of("part"), self._handle_part)

    def run(
        self,
        operation: Operation,
        owners: Sequence[int],
        parts: Sequence[Part],
        into: Sequence[Part] | None = None,
        *,
        is_empty: bool = False,
        is_done: bool = False,
    ) -> Round:
        """Take part in one round.

        Args:
            operation: What all workers do in it.
            owners: Those who put the parts together.
            parts: For each worker, what it is sent if it is an owner; this worker's own is kept here.
            into: For each owner, where its sums go.
            is_empty: Send nothing, and do not look at `parts`.
            is_done: Tell the others that this worker's data have ended.

        Raises:
            WorkerLost: A worker died, left, or did not answer in time.
            RemoteError: The workers do not do the same thing.
        """
        index = self._members.index
        if self._bonds.has_ended():
            self._bonds.raise_failure()
        with self._changed:
            out = () if into is None else into[index]
            begun = self._ledger.begin(
                operation, parts[index], out, owners, is_empty=is_empty, is_done=is_done
            )
            self._changed.notify_all()
        if isinstance(begun, Failure):
            self._bonds.fail(begun)
            self._bonds.raise_failure()
        others = [owner for owner in owners if owner != index]
        fields = begun.ticket.to_fields()
        try:
            for position, owner in enumerate(others):
                part = () if is_empty else parts[owner]
                target = None if into is None else into[owner]
                if position == len(others) - 1:
                    self._send(begun, owner, fields, part, target)
                else:
                    self._bonds.callers.submit(owner, partial(self._send, begun, owner, fields, part, target))
            self._wait_until_over(begun)
        except BaseException as error:
            why = f"it was interrupted in {begun.ticket.place} by {type(error).__name__}"
            self._bonds.fail(lost(self._members.tasks, index, why))
            raise
        return begun

    def _wait_until_over(self, current: Round) -> None:
        end = time.monotonic() + self._members.options.patience
        with self._changed:
            while not current.is_over and not self._bonds.has_ended():
                if self._over.wait(self._members.interval):
                    continue
                # Still sending to a slow one, who then has all that it needs.
                if current.is_combined and not current.missing:
                    break
                if time.monotonic() > end:
                    break
            missing = current.missing
            if current.is_combined and not missing:
                self._ledger.complete()
                self._changed.notify_all()
                return
        if missing:
            self._bonds.fail(self._impatient(missing[0], current))
        self._bonds.raise_failure()

    def _send(self, current: Round, worker: int, fields: Fields, part: Part, into: Part | None) -> None:
        """Bring a part to a worker, again and again until it is taken; failures become the group's."""
        began = time.monotonic()
        next_log = began + _LOG_EVERY
        while True:
            try:
                response = self._members.call(worker, "part", fields, part, into=into)
            except RemoteError as error:
                self._bonds.fail(lost(self._members.tasks, worker, first_line(error)))
                return
            except Exception as error:  # noqa: BLE001  in a thread of its own, nobody else would hear of it
                why = f"it could not send its part of {current.ticket.place}: {error!r}"
                self._bonds.fail(lost(self._members.tasks, self._members.index, why))
                return
            answer = response.fields
            state = answer.get(STATE)
            if state == TAKEN:
                with self._changed:
                    if into is None:
                        current.combined(response.tensors, answer["sizes"])
                    current.answered(worker, bool(answer["all_done"]))
                    if current.is_over:
                        self._over.notify_all()
                return
            if state == FAILED:
                self._bonds.fail(Failure.from_fields(answer))
                return
            if state == DESCRIBE:
                fields = {**fields, "lines": list(current.operation.lines)}
            if self._bonds.has_ended():
                return
            now = time.monotonic()
            if now - began > self._members.options.patience:
                self._bonds.fail(self._impatient(worker, current))
                return
            if now >= next_log and answer.get("begun", 0) < current.ticket.sequence:
                next_log = now + _LOG_EVERY
                _log.warning(
                    "waiting for %s to begin %s (%.0f s so far)",
                    self._members.tasks[worker],
                    current.ticket.place,
                    now - began,
                )

    def _impatient(self, worker: int, current: Round) -> Failure:
        return lost(
            self._members.tasks,
            worker,
            f"it answers, but has not come to the end of {current.ticket.place} within "
            f"{self._members.options.patience:g} s",
        )

    # ------------------------------------------------------- the others' parts

    def _handle_part(self, request: Request) -> Reply:
        ticket = Ticket.from_fields(request.fields)
        end = time.monotonic() + min(self._members.interval, (request.timeout or 1.0) / 2)
        with self._changed:
            refusal = self._ledger.refusal(ticket)
            if refusal is not None:
                return failed(refusal)
            while (admitted := self._ledger.failure or self._ledger.admit(ticket)) is None:
                if not self._changed.wait(end - time.monotonic()):
                    return self._not_yet(NOT_YET)
            if isinstance(admitted, Round) and ticket.digest != admitted.ticket.digest:
                lines = request.fields.get("lines")
                if not isinstance(lines, list):
                    return self._not_yet(DESCRIBE)
                admitted = self._ledger.compare(admitted, ticket, [str(line) for line in lines])
            if isinstance(admitted, Round):
                _check_part(request, ticket, admitted)
                is_last = admitted.put(ticket, request.tensors)
        if isinstance(admitted, Failure):
            if not self._ledger.is_closed:
                self._bonds.fail(admitted)
            return failed(admitted)
        if is_last:
            self._combine(admitted)
        elif (sign := self._await_outcome(admitted, ticket, end)) is not None:
            return sign
        answer = {STATE: TAKEN, "all_done": admitted.all_done, "sizes": admitted.sizes}
        # Woken any sooner, the thread that waits for the end of the round would take the interpreter's lock and a
        # processor away from the one that is still sending, and so keep another worker waiting.
        return Reply(answer, admitted.outcome, after=partial(self._sent, admitted))

    def _sent(self, current: Round) -> None:
        with self._changed:
            current.sent()
            if current.is_over:
                self._over.notify_all()

    def _not_yet(self, state: str) -> Reply:
        return Reply({STATE: state, "begun": self._ledger.begun})

    def _combine(self, current: Round) -> None:
        """Put all parts of a round together; only the thread that brought the last one comes here."""
        parts, sizes = current.parts(), []
        outcome = current.outcome
        if current.operation.sums:
            for index, out in enumerate(outcome):
                sum_in_order([part[index] for part in parts], out)
        else:
            outcome = [np.array(array) for part in parts for array in part]
            sizes = [len(part) for part in parts]
        with self._changed:
            current.combined(outcome, sizes)
            self._changed.notify_all()

    def _await_outcome(self, current: Round, ticket: Ticket, end: float) -> Reply | None:
        """Wait for the other parts; a sign of life, or of the end, if they do not come.

        The part is a view of the caller's memory, which is given back with the answer.
        """
        with self._changed:
            while not current.is_combined:
                if self._ledger.failure is not None:
                    return failed(self._ledger.failure)
                is_late = not self._changed.wait(max(0.0, end - time.monotonic()))
                if is_late and not current.is_combined:
                    if current.withdraw(ticket.worker):
                        return self._not_yet(NOT_YET)
                    end = time.monotonic() + self._members.interval  # they are being put together
        return None


def _check_part(request: Request, ticket: Ticket, current: Round) -> None:
    """The digests agree, so a part that does not fit comes from a caller that cannot be trusted to count."""
    if not current.is_owner:
        raise ProtocolError(f"a part for {current.ticket.place}, of which this worker is no owner")
    if not current.operation.sums or (ticket.is_empty and not request.tensors):
        return
    wanted = [(out.shape, out.dtype) for out in current.outcome]
    if [(tensor.shape, tensor.dtype) for tensor in request.tensors] != wanted:
        raise ProtocolError("a part that is not what its ticket says")
