"""Files that every worker saves by the same script: the chief writes each of them, and the others wait until it has."""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from stratagem.errors import DeadlineExceeded, TaskLost, TaskUnreachable, UnknownCall
from stratagem.runtime import Server
from stratagem.runtime.wire import Reply, Request
from stratagem.runtime.wire.error_translation import first_line
from stratagem.runtime.wire.waiting import WaitingLog

_log = logging.getLogger("stratagem")
_CALL: Final = "chief_files"
NOT_YET, PASSED, SAVED = "not yet", "passed", "saved"
"""The chief's answers: it has not come to that point yet; it is past it and has not saved the file; it has saved it."""
_ANSWER_SECONDS = 2.0
"""After which the chief answers `NOT_YET`."""
_CALL_SECONDS = 10.0
_RETRY_SECONDS = 0.1
_LOST_SECONDS = 60.0
"""How long a chief that does not answer may take to come back."""
_STILL_SECONDS = 600.0
"""How long a chief that answers may stand at one point."""

Point: TypeAlias = tuple[int, int]
"""How many calls that all workers make have begun or ended, and the number of batches since the last of these."""
SaveTicket: TypeAlias = tuple[int, int, int]
"""A point, and the number of times that a path has been saved there."""


class ScriptProgress:
    """How far a worker has come in the script that all workers run, and the files that it has saved. Pure."""

    def __init__(self) -> None:
        self.point: Point = (0, 0)
        self._saved: dict[str, SaveTicket] = {}
        self._tickets: dict[str, SaveTicket] = {}

    def next_call(self) -> None:
        """Begin or end a call that all workers make."""
        self.point = (self.point[0] + 1, 0)

    def next_batch(self) -> None:
        """Come to another batch of the call."""
        self.point = (self.point[0], self.point[1] + 1)

    def ticket(self, path: str) -> SaveTicket:
        """Return the ticket of the next save of a path, which is the same on every worker."""
        last = self._tickets.get(path)
        again = last[2] + 1 if last is not None and last[:2] == self.point else 1
        self._tickets[path] = ticket = (*self.point, again)
        return ticket

    def set_saved(self, path: str, ticket: SaveTicket) -> None:
        """Note that the file of a ticket is complete."""
        self._saved[path] = ticket

    def state(self, path: str | None, ticket: SaveTicket) -> str:
        """Return the state of a ticket; without a path, whether its point has been reached."""
        if path is None:
            return PASSED if self.point >= ticket[:2] else NOT_YET
        if path in self._saved and self._saved[path] >= ticket:
            return SAVED
        return PASSED if self.point > ticket[:2] else NOT_YET


class ChiefFiles:
    """The files that the workers of a job save, as one of them sees them.

    Args:
        server: This task's server.
        chief: The task that writes.
        check: Raises the error that has ended the workers' common work, if one has.
    """

    def __init__(self, server: Server, chief: str, check: Callable[[], object] = lambda: None) -> None:
        self._server = server
        self._chief = chief
        self._check = check
        self._changed = threading.Condition()
        self._progress = ScriptProgress()
        if server.task == chief:
            server.register(_CALL, self._answer)

    def next_call(self) -> None:
        """Begin or end a call that all workers make, in the same order."""
        with self._changed:
            self._progress.next_call()
            self._changed.notify_all()

    def next_batch(self) -> None:
        """Come to another batch of such a call."""
        with self._changed:
            self._progress.next_batch()
            self._changed.notify_all()

    def save(self, path: str, write: Callable[[], object]) -> bool:
        """Have a file written once for all workers that save it at this point.

        The chief writes it, and waits for nobody. The other workers wait until the chief has, and write it themselves
        only if the chief goes on without saving it, or if they do not see the file: their path is another then.

        Args:
            path: The path of the file, or of a directory.
            write: Writes it.

        Returns:
            Whether this worker has written it.

        Raises:
            TaskLost: The chief is lost.
            DeadlineExceeded: The chief makes no progress.
        """
        is_local = "://" not in path
        key = os.path.abspath(path) if is_local else path  # noqa: PTH100  it may be a URL
        with self._changed:
            ticket = self._progress.ticket(key)
        if self._server.task == self._chief:
            write()
            with self._changed:
                self._progress.set_saved(key, ticket)
                self._changed.notify_all()
            return True
        is_there = self._wait(key, ticket, f"to save {path}") == SAVED
        if is_there and (not is_local or os.path.exists(key)):  # noqa: PTH110
            return False
        write()
        return True

    def catch_up(self, what: str) -> None:
        """Wait until the chief has come as far as this worker has.

        Args:
            what: What the chief is to do, for messages: "to end fit".

        Raises:
            TaskLost: The chief is lost.
            DeadlineExceeded: The chief makes no progress.
        """
        if self._server.task != self._chief:
            self._wait(None, (*self._progress.point, 0), what)

    def _answer(self, request: Request) -> Reply:
        path, (call, batch, again) = request.fields["path"], request.fields["ticket"]

        def is_known() -> bool:
            return self._progress.state(path, (call, batch, again)) != NOT_YET

        with self._changed:
            self._changed.wait_for(is_known, _ANSWER_SECONDS)
            return Reply(
                {
                    "state": self._progress.state(path, (call, batch, again)),
                    "point": list(self._progress.point),
                }
            )

    def _wait(self, path: str | None, ticket: SaveTicket, what: str) -> str:
        """Return the chief's state of a ticket, once it is known; a chief that has finished is past it."""
        fields = {"path": path, "ticket": list(ticket)}
        began = answered = moved = time.monotonic()
        log = WaitingLog()
        point, problem = None, ""
        while not self._server.join(0):  # nobody can be asked after that
            self._check()
            try:
                peer = self._server.peers[self._chief]
                answer = peer.call(_CALL, fields, timeout=_CALL_SECONDS, wait=False).fields
            except (TaskLost, TaskUnreachable, DeadlineExceeded, UnknownCall) as error:
                # A chief that is still starting does not know the call.
                if self._server.has_finished(self._chief):
                    break
                problem = first_line(error)
                threading.Event().wait(
                    _RETRY_SECONDS
                )  # a chief that comes back has no event to wait for here
            else:
                if answer["state"] != NOT_YET:
                    return str(answer["state"])
                answered = time.monotonic()
                if answer["point"] != point:
                    point, moved = answer["point"], answered
            now = time.monotonic()
            if now - answered > _LOST_SECONDS:
                raise TaskLost(
                    f"{self._server.task} waited for {self._chief}, the chief, {what}, and has had no answer for "
                    f"{_LOST_SECONDS:.0f} s ({problem}): start the job again"
                )
            if now - moved > _STILL_SECONDS:
                raise DeadlineExceeded(
                    f"{self._server.task} waited for {self._chief}, the chief, {what}, which has not gone on for "
                    f"{_STILL_SECONDS:.0f} s: let every worker save, or the chief alone (if strategy.is_chief: …)"
                )
            if log.is_due(now - began):
                _log.warning(
                    "%s waits for the chief %s (%.0f s so far)", self._server.task, what, now - began
                )
        return PASSED
