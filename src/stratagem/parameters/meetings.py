"""How a worker meets the others by way of server 0: arrays of all, the chief's notes, whether data begin alike."""

import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from stratagem.parameters import protocol
from stratagem.parameters.protocol import OK, STATE
from stratagem.parameters.store import Array
from stratagem.parameters.tie import Tie


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
