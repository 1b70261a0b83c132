"""What holds a group together: its workers meet, watch each other, tell of failures, and say when they leave."""

import logging
import os
import threading
import weakref
from typing import Final, NoReturn

from stratagem.collectives.failures import Failure, lost, sign_of_loss
from stratagem.collectives.ledger import Ledger
from stratagem.collectives.meeting import Introduction, meet
from stratagem.collectives.members import Members, Registrar
from stratagem.errors import ProtocolError, RemoteError, StratagemError
from stratagem.runtime.wire import Reply, Request

_log = logging.getLogger("stratagem")
_TELLING_SECONDS: Final = 1.0
"""How long to try to tell another worker of a failure."""
STATE: Final = "state"
WELL, NOT_YET, FAILED = "well", "not yet", "failed"
"""How a watching call is answered: it is over and all is well, come again, or it is all over."""


class Bonds:
    """This worker's ties to the others, from the first meeting to the farewell.

    Args:
        members: The workers.
        registrar: What answers the others' calls.
        ledger: This worker's book.

    Attributes:
        changed: Guards the book; told when somebody was met or connected, or the group has come to an end.
        alarm: A descriptor that can be read once the group has come to an end.
    """

    def __init__(self, members: Members, registrar: Registrar, ledger: Ledger) -> None:
        self._members = members
        self._ledger = ledger
        self._registrar = registrar
        self.changed = threading.Condition(threading.Lock())
        self.alarm = os.eventfd(0)
        # Not when the group is closed: a thread that still waits would then wait on whatever comes to have this number.
        weakref.finalize(self, os.close, self.alarm)
        # Set once the others know of a failure: who raises at once and ends would seem to be the culprit.
        self._told = threading.Event()
        self._has_finished = self._was_raised = False
        self._parted = {worker: threading.Event() for worker in members.others}

    # ------------------------------------------------------------------ forming

    def form(self) -> None:
        """Answer the others, wait until all have been met, and watch them from then on.

        Whoever has been met may call anything at once, so `meet` is registered last.
        """
        handlers = {
            "watch": self._handle_watch,
            "fail": self._handle_fail,
            "leave": self._handle_leave,
            "meet": self._handle_meet,
        }
        for call, handler in handlers.items():
            self._registrar.register(self._members.name_of(call), handler)
        problems: list[StratagemError] = []
        unmet = set(self._members.others)

        def introduce(worker: int) -> None:
            problem = meet(self._members, self._ledger, worker, self._wait_to_meet)
            with self.changed:
                unmet.discard(worker)
                if problem is not None:
                    problems.append(problem)
                self.changed.notify_all()

        for worker in self._members.others:
            name = f"stratagem-{self._members.name}-meet-{worker}"
            threading.Thread(target=introduce, args=(worker,), name=name, daemon=True).start()
        with self.changed:
            while unmet and not problems and self._ledger.failure is None:
                self.changed.wait()
            failure = self._ledger.failure
        if problems or failure is not None:
            self.close()
            raise failure.error(self._members.tasks) if failure is not None else problems[0]
        for worker in self._members.others:
            name = f"stratagem-{self._members.name}-watch-{worker}"
            threading.Thread(target=self._watch, args=(worker,), name=name, daemon=True).start()

    def _wait_to_meet(self, worker: int, seconds: float) -> bool:
        """Wait so long; whether meanwhile a worker has come by itself, or the group has come to an end."""
        with self.changed:
            return self.changed.wait_for(
                lambda: self.has_ended() or self._ledger.has_met(worker),
                seconds,
            )

    def has_ended(self) -> bool:
        """Whether nothing more can be done in this group."""
        return self._ledger.failure is not None or self._ledger.is_closed

    def wait_for_end(self, seconds: float) -> bool:
        """Whether nothing more can be done, now or within so many seconds."""
        with self.changed:
            return self.changed.wait_for(self.has_ended, seconds)

    # ------------------------------------------------------------ who is alive

    def _watch(self, worker: int) -> None:
        """Keep a call to a worker open: the moment it breaks, the worker is lost."""
        while not self.has_ended():
            try:
                answer = self._members.call(worker, "watch", {"worker": self._members.index}).fields
            except RemoteError as error:
                with self.changed:
                    has_left = worker in self._ledger.left
                if not has_left:
                    self.fail(lost(self._members.tasks, worker, sign_of_loss(error)))
                return
            if answer.get(STATE) == FAILED:
                self.fail(Failure.from_fields(answer))
            if answer.get(STATE) != NOT_YET:
                return

    def _handle_watch(self, request: Request) -> Reply:
        worker = self._other(request)
        if not self._parted[worker].wait(self._members.interval):
            return Reply({STATE: NOT_YET})
        with self.changed:
            failure = self._ledger.failure
            if failure is None and worker not in self._ledger.left and not self._has_finished:
                failure = lost(
                    self._members.tasks, self._members.index, "it closed its group before it had finished"
                )
        return Reply({STATE: WELL}) if failure is None else Reply({STATE: FAILED, **failure.to_fields()})

    def _handle_meet(self, request: Request) -> Reply:
        fields = request.fields
        worker, generation, token = fields.get("worker"), fields.get("generation"), fields.get("token")
        if not (isinstance(worker, int) and isinstance(generation, int) and isinstance(token, str)):
            raise ProtocolError(f"an introduction that is none: {fields!r:.200}")
        with self.changed:
            if fields.get("count") == self._members.count:
                self._ledger.meet(worker, generation, token)
            self.changed.notify_all()
        return Reply(Introduction.fields(self._members, self._ledger))

    # ---------------------------------------------------------------- failures

    def raise_failure(self) -> NoReturn:
        """Raise the failure, once the others have been told of it."""
        self._told.wait(_TELLING_SECONDS)
        with self.changed:
            failure, is_known = self._ledger.failure, self._was_raised
            self._was_raised = True
        if failure is not None:
            before = "this group of workers has come to an end: " * is_known
            # What was noticed here first is in its text already, as far as anybody wants to know.
            raise failure.error(self._members.tasks, before) from None
        raise RemoteError("this group of workers was closed on this side; make a new one")

    def fail(self, failure: Failure) -> None:
        """The group cannot go on: the first reason counts.

        Whoever learns of it tells all others, too, before it raises: one who was told sooner, and has ended, would
        seem to be the culprit to one who has not been told yet.
        """
        with self.changed:
            if self.has_ended():
                return
            self._ledger.failure = failure
            self._ring()
        self._part_from_all()
        threading.Thread(target=self._tell_all, args=(failure,), daemon=True).start()

    def _tell_all(self, failure: Failure) -> None:
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
            self.fail(Failure.from_fields(request.fields))
        return Reply()

    # ----------------------------------------------------------------- leaving

    def leave(self) -> None:
        """Tell the others that this worker has finished. What they still need from it, it has sent already."""
        self._has_finished = True
        words = {"worker": self._members.index, "after": self._ledger.completed}
        for worker in self._members.others:
            if self._ledger.failure is not None:
                return
            try:
                self._members.call(worker, "leave", words)
            except RemoteError as error:
                _log.debug("%s is gone already: %s", self._members.tasks[worker], error)

    def _handle_leave(self, request: Request) -> Reply:
        worker, after = self._other(request), request.fields.get("after")
        if not isinstance(after, int):
            raise ProtocolError(f"a farewell that is none: {request.fields!r:.200}")
        with self.changed:
            failure = self._ledger.leave(worker, after)
        if failure is not None:
            self.fail(failure)
        self._parted[worker].set()
        return Reply()

    def close(self) -> None:
        """Take part in nothing any more; those who still wait for this worker are told so."""
        with self.changed:
            self._ledger.is_closed = True
            self._ring()
        self._told.set()
        self._part_from_all()

    def _ring(self) -> None:
        """Wake everybody here who waits for something."""
        self.changed.notify_all()
        os.eventfd_write(self.alarm, 1)

    def _part_from_all(self) -> None:
        for parted in self._parted.values():
            parted.set()

    def _other(self, request: Request) -> int:
        """Which worker calls."""
        worker = request.fields.get("worker")
        if not isinstance(worker, int) or worker not in self._parted:
            raise ProtocolError(f"a call of worker {worker!r:.40}, which is none of {self._members.others}")
        return worker
