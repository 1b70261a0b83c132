"""Keeps a group together: its workers meet, watch each other, report failures, and say when they leave."""

import logging
import os
import threading
import weakref
from typing import Final, NoReturn

from stratagem.collectives.group_failure import GroupFailure, worker_lost
from stratagem.collectives.group_state import GroupState
from stratagem.collectives.members import CallRegistry, Members
from stratagem.collectives.rendezvous import introduction, meet
from stratagem.errors import ProtocolError, RemoteError, StratagemError
from stratagem.runtime.wire import Reply, Request

_log = logging.getLogger("stratagem")
_REPORT_SECONDS: Final = 1.0
"""Seconds to try to report a failure to another worker."""
_STATE: Final = "state"
_WELL, _NOT_YET, _FAILED = "well", "not yet", "failed"
"""The answers to a watching call: the group has ended well, call again, the group has failed."""


class Liveness:
    """Watches the other workers, from the rendezvous to the farewell.

    Args:
        members: The workers.
        registry: Answers the others' calls.
        state: This worker's knowledge of the group.

    Attributes:
        changed: Guards the state. Notified when a worker was met or connected, and when the group ends.
        alarm: A descriptor that can be read once the group has ended.
    """

    def __init__(self, members: Members, registry: CallRegistry, state: GroupState) -> None:
        self._members = members
        self._state = state
        self._registry = registry
        self.changed = threading.Condition(threading.Lock())
        self.alarm = os.eventfd(0)
        # Not when the group is closed: a thread that still waits would then wait on whatever gets this number next.
        weakref.finalize(self, os.close, self.alarm)
        # Set once the others know of a failure: a worker that raises and ends before would seem to be the culprit.
        self._is_reported = threading.Event()
        self._has_finished = self._was_raised = False
        # Set when a worker has left or the group has ended: its watching call is answered then.
        self._departures = {worker: threading.Event() for worker in members.others}

    # ------------------------------------------------------------------ forming

    def form(self) -> None:
        """Answer the others, wait until all have been met, and watch them from then on.

        A worker may call anything as soon as it has been met, so `meet` is registered last.
        """
        handlers = {
            "watch": self._handle_watch,
            "fail": self._handle_fail,
            "leave": self._handle_leave,
            "meet": self._handle_meet,
        }
        for call, handler in handlers.items():
            self._registry.register(self._members.name_of(call), handler)
        problems: list[StratagemError] = []
        unmet = set(self._members.others)

        def introduce(worker: int) -> None:
            problem = meet(self._members, self._state, worker, self._wait_to_meet)
            with self.changed:
                unmet.discard(worker)
                if problem is not None:
                    problems.append(problem)
                self.changed.notify_all()

        for worker in self._members.others:
            name = f"stratagem-{self._members.name}-meet-{worker}"
            threading.Thread(target=introduce, args=(worker,), name=name, daemon=True).start()
        with self.changed:
            while unmet and not problems and self._state.failure is None:
                self.changed.wait()
            failure = self._state.failure
        if problems or failure is not None:
            self.close()
            raise failure.error(self._members.tasks) if failure is not None else problems[0]
        for worker in self._members.others:
            name = f"stratagem-{self._members.name}-watch-{worker}"
            threading.Thread(target=self._watch, args=(worker,), name=name, daemon=True).start()

    def _wait_to_meet(self, worker: int, seconds: float) -> bool:
        """Wait. Return True if meanwhile the worker has introduced itself, or the group has ended."""
        with self.changed:
            return self.changed.wait_for(
                lambda: self._state.has_ended or self._state.has_identified(worker), seconds
            )

    def _handle_meet(self, request: Request) -> Reply:
        fields = request.fields
        worker, generation, token = fields.get("worker"), fields.get("generation"), fields.get("token")
        if not (isinstance(worker, int) and isinstance(generation, int) and isinstance(token, str)):
            raise ProtocolError(f"not an introduction: {fields!r:.200}")
        with self.changed:
            if fields.get("count") == self._members.count:
                self._state.identify(worker, generation, token)
            self.changed.notify_all()
        return Reply(introduction(self._members, self._state))

    def wait_for_end(self, seconds: float) -> bool:
        """Return whether the group has ended, now or within some seconds."""
        with self.changed:
            return self.changed.wait_for(lambda: self._state.has_ended, seconds)

    # ------------------------------------------------------------ who is alive

    def _watch(self, worker: int) -> None:
        """Keep a call to a worker open: the moment it breaks, the worker is lost."""
        while not self._state.has_ended:
            try:
                answer = self._members.call(worker, "watch", {"worker": self._members.index}).fields
            except RemoteError as error:
                with self.changed:
                    has_left = worker in self._state.left
                if not has_left:
                    self.fail(worker_lost(self._members.tasks, worker, error))
                return
            if answer.get(_STATE) == _FAILED:
                self.fail(GroupFailure.from_fields(answer))
            if answer.get(_STATE) != _NOT_YET:
                return

    def _handle_watch(self, request: Request) -> Reply:
        worker = self._caller(request)
        if not self._departures[worker].wait(self._members.interval):
            return Reply({_STATE: _NOT_YET})
        with self.changed:
            failure = self._state.failure
            if failure is None and worker not in self._state.left and not self._has_finished:
                failure = worker_lost(
                    self._members.tasks, self._members.index, "it closed its group before it had finished"
                )
        return Reply({_STATE: _WELL}) if failure is None else Reply({_STATE: _FAILED, **failure.to_fields()})

    # ---------------------------------------------------------------- failures

    def raise_failure(self) -> NoReturn:
        """Raise the failure, once it has been reported to the others."""
        self._is_reported.wait(_REPORT_SECONDS)
        with self.changed:
            failure, was_raised = self._state.failure, self._was_raised
            self._was_raised = True
        if failure is not None:
            prefix = "this group of workers has come to an end: " * was_raised
            # The text says already what was noticed here first.
            raise failure.error(self._members.tasks, prefix) from None
        raise RemoteError("this group of workers was closed on this side; make a new one")

    def fail(self, failure: GroupFailure) -> None:
        """End the group; the first reason counts.

        Every worker that learns of a failure reports it to all others before it raises. Otherwise one that learned of
        it first, and has ended, would seem to be the culprit to those that have not learned of it yet.
        """
        with self.changed:
            if self._state.has_ended:
                return
            self._state.failure = failure
            self._wake_waiters()
        self._answer_watchers()
        threading.Thread(target=self._report_to_all, args=(failure,), daemon=True).start()

    def _report_to_all(self, failure: GroupFailure) -> None:
        threads = [
            threading.Thread(target=self._report, args=(worker, failure), daemon=True)
            for worker in self._members.others
            if not (failure.kind == "lost" and worker == failure.worker)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_REPORT_SECONDS)
        self._is_reported.set()

    def _report(self, worker: int, failure: GroupFailure) -> None:
        fields = {**failure.to_fields(), "generation": self._state.generation}
        try:
            self._members.call(worker, "fail", fields, timeout=_REPORT_SECONDS)
        except RemoteError as error:
            _log.debug("could not report the failure to %s: %s", self._members.tasks[worker], error)

    def _handle_fail(self, request: Request) -> Reply:
        if request.fields.get("generation") == self._state.generation:
            self.fail(GroupFailure.from_fields(request.fields))
        return Reply()

    # ----------------------------------------------------------------- leaving

    def leave(self) -> None:
        """Tell the others that this worker has finished. It has already sent what they still need from it."""
        self._has_finished = True
        fields = {"worker": self._members.index, "after": self._state.completed}
        for worker in self._members.others:
            if self._state.failure is not None:
                return
            try:
                self._members.call(worker, "leave", fields)
            except RemoteError as error:
                _log.debug("%s is gone already: %s", self._members.tasks[worker], error)

    def _handle_leave(self, request: Request) -> Reply:
        worker, after = self._caller(request), request.fields.get("after")
        if not isinstance(after, int):
            raise ProtocolError(f"not a farewell: {request.fields!r:.200}")
        with self.changed:
            failure = self._state.leave(worker, after)
        if failure is not None:
            self.fail(failure)
        self._departures[worker].set()
        return Reply()

    def close(self) -> None:
        """Take part in nothing any more, and answer the others that still wait for this worker."""
        with self.changed:
            self._state.is_closed = True
            self._wake_waiters()
        self._is_reported.set()
        self._answer_watchers()

    def _wake_waiters(self) -> None:
        self.changed.notify_all()
        os.eventfd_write(self.alarm, 1)

    def _answer_watchers(self) -> None:
        for departure in self._departures.values():
            departure.set()

    def _caller(self, request: Request) -> int:
        """Return the index of the worker that calls."""
        worker = request.fields.get("worker")
        if not isinstance(worker, int) or worker not in self._departures:
            raise ProtocolError(f"a call of worker {worker!r:.40}, which is none of {self._members.others}")
        return worker
