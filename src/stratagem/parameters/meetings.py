"""How a worker meets the others by way of server 0: arrays of all, the chief's notes, whether data begin alike."""

import logging
import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from stratagem.parameters import protocol
from stratagem.parameters.agreements import Label
from stratagem.parameters.protocol import OK, STATE
from stratagem.parameters.tie import LONG, Tie
from stratagem.runtime.wire.arrays import Array

_log = logging.getLogger("stratagem")


class Meetings:
    """One worker's part in all meetings about one model.

    Args:
        tie: Its tie to the servers.
        has_pushed: Whether this worker has pushed anything so far.
    """

    def __init__(self, tie: Tie, has_pushed: Callable[[], bool]) -> None:
        self._tie = tie
        self._has_pushed = has_pushed
        self._gathers = 0
        self._notes: Counter[str] = Counter()

    def gather(self, what: str, array: Array) -> list[Array]:
        """The arrays of all workers, in their order; every worker has to come to this."""
        self._gathers += 1
        key = f"{self._tie.server.incarnation} {self._gathers}"

        def act() -> list[Array]:
            fields = {"worker": self._tie.worker, "what": what, "key": key}
            began = time.monotonic()
            while True:
                answer = self._tie.call(0, protocol.GATHER, fields, [array])
                if answer.fields[STATE] == OK:
                    return answer.tensors
                waiting = ", ".join(answer.fields["waiting"])
                self._tie.say_waiting(f"for {waiting} to come to {what}", time.monotonic() - began)

        return self._tie.persistent(act)

    def end_fit(self, fit: int) -> None:
        """Tell that this worker has come to the end of a fit."""
        fields = {"worker": self._tie.worker, "fit": fit}
        self._tie.persistent(lambda: self._tie.call(0, protocol.ENDED, fields))

    def agree(self, label: Label) -> None:
        """Have the servers keep the parameters that all workers look at under a label.

        Waits for the other workers if they have to come to the end of a fit first: as long as they train, and then for as
        long as a lost worker may take to come back. Then it goes on without them.
        """
        tie = self._tie
        began = progressed = time.monotonic()
        pushed, waits = 0, True
        while True:
            fields = {"epoch": tie.epoch, "label": list(label), "waits": waits}
            answer = tie.call(0, protocol.AGREE, fields, seconds=LONG).fields
            if answer[STATE] == OK:
                return
            now, waiting = time.monotonic(), ", ".join(answer["waiting"])
            if answer["pushed"] != pushed:
                pushed, progressed = answer["pushed"], now
            waits = now - progressed < tie.patience
            if waits:
                tie.say_waiting(f"for {waiting} to come to the end of fit", now - began)
            else:
                _log.warning(
                    "%s does not wait any longer for %s to come to the end of fit, with no step for %g s: it evaluates "
                    "without what is still to be trained there",
                    tie.server.task,
                    waiting,
                    tie.patience,
                )

    def check_same(self, number: int, digest: bytes) -> None:
        """Raise unless this worker's data begin as the others' do."""
        fields = {"worker": self._tie.worker, "number": number, "digest": digest}
        self._tie.persistent(lambda: self._tie.call(0, protocol.SAME, fields))

    def note(self, what: str, note: bytes) -> None:
        """Leave a note with server 0, for the other workers: the chief's part in what `noted` waits for."""
        told = {"key": self._key(what)}
        self._tie.persistent(lambda: self._tie.call(0, protocol.NOTE, told, [np.frombuffer(note, np.uint8)]))

    def noted(self, what: str) -> bytes | None:
        """The chief's note; waits until there have been as many of that kind as this worker has asked for.

        Returns:
            The note; `None` for a worker that was started, perhaps again, while others train: they are past it.
        """
        told = {"key": self._key(what)}

        def act() -> bytes | None:
            began = time.monotonic()
            while True:
                answer = self._tie.call(0, protocol.NOTED, told)
                if answer.fields[STATE] == OK:
                    return answer.tensors[0].tobytes()
                if not self._has_pushed() and answer.fields["step"] > 0:
                    return None
                self._tie.say_waiting(f"for the chief to have {what}", time.monotonic() - began)

        return self._tie.persistent(act)

    def _key(self, what: str) -> str:
        self._notes[what] += 1
        return f"{what} {self._notes[what]}"
