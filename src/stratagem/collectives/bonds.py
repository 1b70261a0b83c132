"""What holds a group together: its workers meet, watch each other, tell of failures, and say when they leave."""

import logging
import threading
import time
from functools import partial
from typing import Final, NoReturn

from stratagem.collectives.callers import Callers
from stratagem.collectives.failures import Failure, lost
from stratagem.collectives.ledger import Ledger
from stratagem.collectives.meeting import Introduction, meet
from stratagem.collectives.members import Members, Registrar
from stratagem.errors import ProtocolError, RemoteError, StratagemError
from stratagem.runtime.wire import Reply, Request

_log = logging.getLogger("stratagem")
_TELLING_SECONDS: Final = 1.0
"""How long to try to tell another worker of a failure."""
STATE: Final = "state"
TAKEN, NOT_YET, DESCRIBE, FAILED = "taken", "not yet", "describe", "failed"
"""How a call is answered: with what was asked for, come again, say what your arrays are, or it is all over."""


class Bonds:
    """This worker's ties to the others, from the first meeting to the farewell.

    Args:
        members: The workers.
        registrar: What answers the others' calls.
        ledger: This worker's book.

    Attributes:
        callers: Threads to call the others with.
        changed: Guards the book. Of interest to handlers: a round was begun, put together or ended, or the group
            has come to an end.
        over: Under the same lock. Of interest to the thread that runs operations: its round is over, or the
            group has come to an end.
    """

    def __init__(self, members: Members, registrar: Registrar, ledger: Ledger) -> None:
        self._members = members
        self._ledger = ledger
        self._registrar = registrar
        lock = threading.Lock()
        self.changed, self.over = threading.Condition(lock), threading.Condition(lock)
        self.callers = Callers(members.others, f"stratagem-{members.name}")
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
            self.callers.submit(worker, partial(introduce, worker))
        with self.changed:
            # Also for one who came here by itself: a thread that went on trying would not be free to call it.
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
                    self.fail(lost(self._members.tasks, worker, first_line(error)))
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
        return Reply({STATE: TAKEN}) if failure is None else failed(failure)

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
            raise failure.error(self._members.tasks, "this group of workers has come to an end: " * is_known)
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
            self.changed.notify_all()
            self.over.notify_all()
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
            self.callers.submit(worker, partial(part, worker))
        for goodbye in goodbyes.values():
            goodbye.wait(self._members.options.timeout)

    def _handle_leave(self, request: Request) -> Reply:
        worker, after = self._other(request), request.fields.get("after")
        if not isinstance(after, int):
            raise ProtocolError(f"a farewell that is none: {request.fields!r:.200}")
        with self.changed:
            failure = self._ledger.leave(worker, after)
            is_over = self.changed.wait_for(
                lambda: self._ledger.completed >= after or self.has_ended(), self._members.interval
            )
        if failure is not None:
            self.fail(failure)
        self._parted[worker].set()
        return Reply({"is_over": is_over})

    def close(self) -> None:
        """Take part in nothing any more; those who still wait for this worker are told so."""
        with self.changed:
            self._ledger.is_closed = True
            self.changed.notify_all()
            self.over.notify_all()
        self._told.set()
        self._part_from_all()
        self.callers.close()

    def _part_from_all(self) -> None:
        for parted in self._parted.values():
            parted.set()

    def _other(self, request: Request) -> int:
        """Which worker calls."""
        worker = request.fields.get("worker")
        if not isinstance(worker, int) or worker not in self._parted:
            raise ProtocolError(f"a call of worker {worker!r:.40}, which is none of {self._members.others}")
        return worker


def failed(failure: Failure) -> Reply:
    """The answer to whoever calls after the end."""
    return Reply({STATE: FAILED, **failure.to_fields()})


def first_line(error: BaseException) -> str:
    """What went wrong, without the far side's traceback."""
    return str(error).partition("\n")[0]
