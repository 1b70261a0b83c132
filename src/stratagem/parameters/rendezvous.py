"""Where the workers of a model meet, by way of server 0: to gather arrays, pass notes, and evaluate the same values."""

import logging
import time
from collections import Counter

import numpy as np

from stratagem.parameters import protocol
from stratagem.parameters.client import LONG
from stratagem.parameters.exchanges import Label
from stratagem.parameters.planning import Pieces
from stratagem.parameters.protocol import OK, STATE
from stratagem.parameters.push import TrainingClient
from stratagem.runtime.wire import Response
from stratagem.runtime.wire.arrays import Array

_log = logging.getLogger("stratagem")


class Rendezvous:
    """One worker's part in everything that all workers of a model do together."""

    def __init__(self, client: TrainingClient) -> None:
        self._client = client
        self._gathers = 0
        self._notes: Counter[str] = Counter()

    def gather(self, what: str, array: Array) -> list[Array]:
        """Return the arrays of all workers, in their order; every worker has to call this."""
        client = self._client
        self._gathers += 1
        key = f"{client.server.incarnation} {self._gathers}"
        fields = {"worker": client.worker, "what": what, "key": key}

        def attempt() -> list[Array]:
            began = time.monotonic()
            while True:
                answer = client.call(0, protocol.GATHER, fields, [array])
                if answer.fields[STATE] == OK:
                    return answer.tensors
                waiting = ", ".join(answer.fields["waiting"])
                client.log_waiting(f"for {waiting} to come to {what}", time.monotonic() - began)

        return client.retry(attempt)

    def check_same(self, number: int, digest: bytes) -> None:
        """Raise unless this worker's data begin as the others' do."""
        client = self._client
        client.ask(protocol.SAME, {"worker": client.worker, "number": number, "digest": digest})

    # Values that all workers evaluate.

    def end_fit(self, fit: int) -> None:
        """Tell server 0 that this worker has come to the end of a fit."""
        self._client.ask(protocol.ENDED, {"worker": self._client.worker, "fit": fit})

    def agreed(self, label: Label) -> Pieces:
        """Return the parameters of every server that all workers evaluate under a label, or one that stands for it."""
        client = self._client

        def read(server: int) -> Response:
            return client.call(server, protocol.MARKED, {"label": list(label)}, seconds=LONG)

        def attempt() -> Pieces:
            while True:
                self.agree(label)
                answers = client.everywhere(read)
                # Another worker may have come to a newer label between two answers.
                if len({tuple(answer.fields["label"]) for answer in answers}) == 1:
                    return [answer.tensors for answer in answers]

        return client.retry(attempt)

    def agree(self, label: Label) -> None:
        """Have the servers keep the parameters that all workers evaluate under a label.

        Waits for the other workers if they have to come to the end of a fit first: as long as they train, and then for as
        long as a lost worker may take to come back. Then it goes on without them.
        """
        client = self._client
        began = progressed = time.monotonic()
        pushed, waits = 0, True
        while True:
            fields = {"label": list(label), "waits": waits}
            answer = client.call(0, protocol.AGREE, fields, seconds=LONG).fields
            if answer[STATE] == OK:
                return
            now, waiting = time.monotonic(), ", ".join(answer["waiting"])
            if answer["pushed"] != pushed:
                pushed, progressed = answer["pushed"], now
            waits = now - progressed < client.patience
            if waits:
                client.log_waiting(f"for {waiting} to come to the end of fit", now - began)
            else:
                _log.warning(
                    "%s does not wait any longer for %s to come to the end of fit, with no step for %g s: it evaluates "
                    "without what is still to be trained there",
                    client.server.task,
                    waiting,
                    client.patience,
                )

    # The chief's notes.

    def note(self, what: str, note: bytes) -> None:
        """Leave a note with server 0, for the other workers: the chief's part in what `read_note` waits for."""
        self._client.ask(protocol.NOTE, {"key": self._next_key(what)}, [np.frombuffer(note, np.uint8)])

    def read_note(self, what: str) -> bytes | None:
        """Wait for the chief's note: the first of that kind, then the second, and so on.

        Returns:
            The note; `None` for a worker that was started, perhaps again, while others train: they are past it.
        """
        client, key = self._client, self._next_key(what)

        def attempt() -> bytes | None:
            began = time.monotonic()
            while True:
                answer = client.call(0, protocol.NOTED, {"key": key})
                if answer.fields[STATE] == OK:
                    return answer.tensors[0].tobytes()
                if not client.has_pushed and answer.fields["step"] > 0:
                    return None
                client.log_waiting(f"for the chief to have {what}", time.monotonic() - began)

        return client.retry(attempt)

    def _next_key(self, what: str) -> str:
        self._notes[what] += 1
        return f"{what} {self._notes[what]}"
