"""Carries out rounds between the workers of a group: calls the others, answers them, notices who is missing.

In each round every worker sends a part to the owners, who answer with the outcome. A part waits at an owner until
all have come, with a sign of life every second; so a call that stays unanswered is a worker lost.
"""

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Final, NoReturn

import numpy as np

from stratagem.collectives.callers import Callers
from stratagem.collectives.failures import Failure, lost
from stratagem.collectives.ledger import Ledger
from stratagem.collectives.meeting import Introduction, meet
from stratagem.collectives.members import Members, Registrar
from stratagem.collectives.rounds import Part, Round
from stratagem.collectives.sums import sum_in_order
from stratagem.collectives.tickets import Operation, Ticket
from stratagem.errors import ProtocolError, RemoteError, StratagemError
from stratagem.runtime.wire import Fields, Reply, Request

_log = logging.getLogger("stratagem")
_LOG_EVERY: Final = 5.0
_TELLING_SECONDS: Final = 1.0
"""How long to try to tell another worker of a failure."""
STATE: Final = "state"
TAKEN, NOT_YET, DESCRIBE, FAILED = "taken", "not yet", "describe", "failed"
"""How a part is answered: with what was asked for, come again, say what your arrays are, or it is all over."""


class Exchange:
    """This worker's end of a group: its book, the threads that call others, and the handlers that answer them.

    Args:
        members: The workers.
        registrar: What answers the others' calls.
        ledger: This worker's book.
    """

    def __init__(self, members: Members, registrar: Registrar, ledger: Ledger) -> None:
        self._members = members
        self._ledger = ledger
        self._changed = threading.Condition(threading.Lock())
        self._told = threading.Event()
        """Set once the others know of a failure: who raises at once and ends would seem to be the culprit."""
        self._has_finished = self._was_raised = False
        self._parted = {worker: threading.Event() for worker in members.others}
        self._callers = Callers(members.others, f"stratagem-{members.name}")
        handlers = {
            "meet": self._handle_meet,
            "part": self._handle_part,
            "watch": self._handle_watch,
            "fail": self._handle_fail,
            "leave": self._handle_leave,
        }
        for call, handler in handlers.items():
            registrar.register(members.name_of(call), handler)

    # ------------------------------------------------------------------ forming

    def form(self) -> None:
        """Wait until all workers have been met; from then on they are watched."""
        problems: list[StratagemError] = []

        def introduce(worker: int) -> None:
            problem = meet(self._members, self._ledger, worker, self._wait_for_end)
            with self._changed:
                if problem is not None:
                    problems.append(problem)
                self._changed.notify_all()

        for worker in self._members.others:
            self._callers.submit(worker, partial(introduce, worker))
        with self._changed:
            while self._ledger.unmet and not problems and self._ledger.failure is None:
                self._changed.wait()
            failure = self._ledger.failure
        if problems:
            self.close()
            raise problems[0]
        if failure is not None:
            raise failure.error(self._members.tasks)
        for worker in self._members.others:
            name = f"stratagem-{self._members.name}-watch-{worker}"
            threading.Thread(target=self._watch, args=(worker,), name=name, daemon=True).start()

    def _wait_for_end(self, seconds: float) -> bool:
        """Wait so long; whether meanwhile the group has come to an end."""
        with self._changed:
            return self._changed.wait_for(self._has_ended, seconds)

    def _has_ended(self) -> bool:
        return self._ledger.failure is not None or self._ledger.is_closed

    # ------------------------------------------------------------------- rounds

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
        if self._has_ended():
            self._raise()
        with self._changed:
            out = () if into is None else into[index]
            begun = self._ledger.begin(
                operation, parts[index], out, owners, is_empty=is_empty, is_done=is_done
            )
            self._changed.notify_all()
        if isinstance(begun, Failure):
            self._fail(begun)
            self._raise()
        others = [owner for owner in owners if owner != index]
        fields = begun.ticket.to_fields()
        try:
            for position, owner in enumerate(others):
                part = () if is_empty else parts[owner]
                target = None if into is None else into[owner]
                if position == len(others) - 1:
                    self._send(begun, owner, fields, part, target)
                else:
                    self._callers.submit(owner, partial(self._send, begun, owner, fields, part, target))
            self._wait_until_over(begun)
        except BaseException as error:
            why = f"it was interrupted in {begun.ticket.place} by {type(error).__name__}"
            self._fail(lost(self._members.tasks, index, why))
            raise
        return begun

    def _wait_until_over(self, current: Round) -> None:
        end = time.monotonic() + self._members.options.patience
        with self._changed:
            while not current.is_over and self._ledger.failure is None:
                if not self._changed.wait(self._members.interval) and time.monotonic() > end:
                    missing = current.missing
                    break
            else:
                missing = []
            if current.is_over:
                self._ledger.complete()
                self._changed.notify_all()
                return
        if missing:
            self._fail(self._impatient(missing[0], current))
        self._raise()

    def _send(self, current: Round, worker: int, fields: Fields, part: Part, into: Part | None) -> None:
        """Bring a part to a worker, again and again until it is taken; failures become the group's."""
        began = time.monotonic()
        next_log = began + _LOG_EVERY
        while True:
            try:
                response = self._members.call(worker, "part", fields, part, into=into)
            except RemoteError as error:
                self._fail(lost(self._members.tasks, worker, _first_line(error)))
                return
            answer = response.fields
            state = answer.get(STATE)
            if state == TAKEN:
                with self._changed:
                    if into is None:
                        current.combined(response.tensors, answer["sizes"])
                    current.answered(worker, bool(answer["all_done"]))
                    if current.is_over:
                        self._changed.notify_all()
                return
            if state == FAILED:
                self._fail(Failure.from_fields(answer), announce=False)
                return
            if state == DESCRIBE:
                fields = {**fields, "lines": list(current.operation.lines)}
            if self._has_ended():
                return
            now = time.monotonic()
            if now - began > self._members.options.patience:
                self._fail(self._impatient(worker, current))
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
                return _failed(refusal)
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
                self._fail(admitted)
            return _failed(admitted)
        if is_last:
            self._combine(admitted)
        elif (sign := self._await_outcome(admitted, ticket, end)) is not None:
            return sign
        return Reply({STATE: TAKEN, "all_done": admitted.all_done, "sizes": admitted.sizes}, admitted.outcome)

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
                    return _failed(self._ledger.failure)
                is_late = not self._changed.wait(max(0.0, end - time.monotonic()))
                if is_late and not current.is_combined:
                    if current.withdraw(ticket.worker):
                        return self._not_yet(NOT_YET)
                    end = time.monotonic() + self._members.interval  # they are being put together
        return None

    # ------------------------------------------------------------ who is alive

    def _watch(self, worker: int) -> None:
        """Keep a call to a worker open: the moment it breaks, the worker is lost."""
        while not self._has_ended():
            try:
                answer = self._members.call(worker, "watch", {"worker": self._members.index}).fields
            except RemoteError as error:
                with self._changed:
                    has_left = worker in self._ledger.left
                if not has_left:
                    self._fail(lost(self._members.tasks, worker, _first_line(error)))
                return
            if answer.get(STATE) == FAILED:
                self._fail(Failure.from_fields(answer), announce=False)
            if answer.get(STATE) != NOT_YET:
                return

    def _handle_watch(self, request: Request) -> Reply:
        worker = self._other(request)
        if not self._parted[worker].wait(self._members.interval):
            return Reply({STATE: NOT_YET})
        with self._changed:
            failure = self._ledger.failure
            if failure is None and worker not in self._ledger.left and not self._has_finished:
                failure = lost(
                    self._members.tasks, self._members.index, "it closed its group before it had finished"
                )
        return Reply({STATE: TAKEN}) if failure is None else _failed(failure)

    def _handle_meet(self, request: Request) -> Reply:
        fields = request.fields
        worker, generation, token = fields.get("worker"), fields.get("generation"), fields.get("token")
        if not (isinstance(worker, int) and isinstance(generation, int) and isinstance(token, str)):
            raise ProtocolError(f"an introduction that is none: {fields!r:.200}")
        with self._changed:
            if fields.get("count") == self._members.count:
                self._ledger.meet(worker, generation, token)
            self._changed.notify_all()
        return Reply(Introduction.fields(self._members, self._ledger))

    # ---------------------------------------------------------------- failures

    def _raise(self) -> NoReturn:
        """Raise the failure, once the others have been told of it."""
        self._told.wait(_TELLING_SECONDS)
        with self._changed:
            failure, is_known = self._ledger.failure, self._was_raised
            self._was_raised = True
        if failure is not None:
            raise failure.error(self._members.tasks, "this group of workers has come to an end: " * is_known)
        raise RemoteError("this group of workers was closed on this side; make a new one")

    def _fail(self, failure: Failure, announce: bool = True) -> None:
        """The group cannot go on: the first reason counts, and the others are told."""
        with self._changed:
            if self._has_ended():
                return
            self._ledger.failure = failure
            self._changed.notify_all()
        self._part_from_all()
        if announce:
            telling = [
                threading.Thread(target=self._tell, args=(worker, failure), daemon=True)
                for worker in self._members.others
                if not (failure.kind == "lost" and worker == failure.worker)
            ]
            for thread in telling:
                thread.start()
            for thread in telling:
                thread.join(_TELLING_SECONDS)
        self._told.set()

    def _tell(self, worker: int, failure: Failure) -> None:
        fields = {**failure.to_fields(), "generation": self._ledger.generation}
        try:
            self._members.call(worker, "fail", fields, timeout=_TELLING_SECONDS)
        except RemoteError as error:
            _log.debug("could not tell %s: %s", self._members.tasks[worker], error)

    def _handle_fail(self, request: Request) -> Reply:
        if request.fields.get("generation") == self._ledger.generation:
            self._fail(Failure.from_fields(request.fields), announce=False)
        return Reply()

    # ----------------------------------------------------------------- leaving

    def leave(self) -> None:
        """Tell the others that this worker has finished, and wait until they need nothing more from it."""
        self._has_finished = True
        goodbyes = {worker: threading.Event() for worker in self._members.others}

        def part(worker: int) -> None:
            end = time.monotonic() + self._members.options.timeout
            words = {"worker": self._members.index, "after": self._ledger.completed}
            is_over = False
            while not is_over and time.monotonic() < end and self._ledger.failure is None:
                try:
                    is_over = bool(self._members.call(worker, "leave", words).fields.get("is_over", True))
                except RemoteError as error:
                    _log.debug("%s is gone already: %s", self._members.tasks[worker], error)
                    is_over = True
            goodbyes[worker].set()

        for worker in self._members.others:
            self._callers.submit(worker, partial(part, worker))
        for goodbye in goodbyes.values():
            goodbye.wait(self._members.options.timeout)

    def _handle_leave(self, request: Request) -> Reply:
        worker, after = self._other(request), request.fields.get("after")
        if not isinstance(after, int):
            raise ProtocolError(f"a farewell that is none: {request.fields!r:.200}")
        with self._changed:
            failure = self._ledger.leave(worker, after)
            is_over = self._changed.wait_for(
                lambda: self._ledger.completed >= after or self._has_ended(), self._members.interval
            )
        if failure is not None:
            self._fail(failure)
        self._parted[worker].set()
        return Reply({"is_over": is_over})

    def close(self) -> None:
        """Take part in nothing any more; those who still wait for this worker are told so."""
        with self._changed:
            self._ledger.is_closed = True
            self._changed.notify_all()
        self._told.set()
        self._part_from_all()
        self._callers.close()

    def _part_from_all(self) -> None:
        for parted in self._parted.values():
            parted.set()

    def _other(self, request: Request) -> int:
        """Which worker calls."""
        worker = request.fields.get("worker")
        if not isinstance(worker, int) or worker not in self._parted:
            raise ProtocolError(f"a call of worker {worker!r:.40}, which is none of {self._members.others}")
        return worker


def _check_part(request: Request, ticket: Ticket, current: Round) -> None:
    """The digests agree, so a part that does not fit comes from a caller that cannot be trusted to count."""
    if not current.is_owner:
        raise ProtocolError(f"a part for {current.ticket.place}, of which this worker is no owner")
    if not current.operation.sums or (ticket.is_empty and not request.tensors):
        return
    wanted = [(out.shape, out.dtype) for out in current.outcome]
    if [(tensor.shape, tensor.dtype) for tensor in request.tensors] != wanted:
        raise ProtocolError("a part that is not what its ticket says")


def _failed(failure: Failure) -> Reply:
    return Reply({STATE: FAILED, **failure.to_fields()})


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
