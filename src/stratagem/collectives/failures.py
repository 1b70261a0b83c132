"""Why a group of workers cannot go on: told from worker to worker, raised by every one of them."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from stratagem.errors import (
    DeadlineExceeded,
    ProtocolError,
    RemoteError,
    TaskLost,
    TaskUnreachable,
    VariableMismatch,
    WorkerLost,
)
from stratagem.runtime.wire import Fields
from stratagem.runtime.wire.error_translation import first_line

_log = logging.getLogger("stratagem")

_KINDS: dict[str, type[RemoteError]] = {
    "lost": WorkerLost,
    "out of step": RemoteError,
    "mismatch": VariableMismatch,
}
START_AGAIN = (
    "The others cannot go on without it: start all workers again, as a new generation "
    "(`stratagem run --max-restarts N` does so by itself)"
)


@dataclass(frozen=True)
class Failure:
    """One reason, in words that are true wherever they are read.

    Attributes:
        kind: `lost`, `out of step` or `mismatch`.
        worker: Whose fault it is, by index; `None` if it cannot be said.
        text: What happened and what to do.
    """

    kind: str
    worker: int | None
    text: str

    def __post_init__(self) -> None:
        is_index = self.worker is None or (isinstance(self.worker, int) and self.worker >= 0)
        if self.kind not in _KINDS or not is_index or not isinstance(self.text, str):
            raise ProtocolError(f"a failure that is none: {self!r:.200}")

    @classmethod
    def from_fields(cls, fields: Fields) -> "Failure":
        """The failure that another worker told of."""
        return cls(fields.get("kind", ""), fields.get("worker"), fields.get("text", ""))

    def to_fields(self) -> Fields:
        """The same in plain values."""
        return {"kind": self.kind, "worker": self.worker, "text": self.text}

    def error(self, tasks: Sequence[str], before: str = "") -> RemoteError:
        """A new exception to raise, with something to say before what happened."""
        error = _KINDS[self.kind](before + self.text)
        if self.worker is not None and self.worker < len(tasks):
            error.task = tasks[self.worker]
        return error


def lost(tasks: Sequence[str], worker: int, why: str) -> Failure:
    """A worker died, or does not answer."""
    return Failure("lost", worker, f"{tasks[worker]} is lost: {why.rstrip('.')}. {START_AGAIN}")


def sign_of_loss(error: RemoteError) -> str:
    """How the loss of a worker was noticed, in words for somebody who does not know our calls."""
    _log.debug("a sign of a lost worker: %s", error)
    if isinstance(error, TaskLost | TaskUnreachable):
        return "its connection broke: either its process has ended, or the network has failed"
    if isinstance(error, DeadlineExceeded):
        return "it has given no sign of life in time: either it hangs, or the network has failed"
    return first_line(error)


def has_left(tasks: Sequence[str], worker: int, after: int, other: int, begins: str) -> Failure:
    """A worker closed its group while another goes on."""
    return Failure(
        "lost",
        worker,
        f"{tasks[worker]} has left the group after operation {after}, and {tasks[other]} begins {begins}. Every "
        "worker must take the same number of steps: give all of them the same number of batches, or let "
        "strategy.distribute_from_function see to it, where one whose data have ended takes part with nothing to add",
    )


def out_of_step(tasks: Sequence[str], one: int, at: str, other: int, other_at: str) -> Failure:
    """Two workers do different things."""
    return Failure(
        "out of step",
        other,
        f"the workers are out of step: {tasks[one]} is at {at}, {tasks[other]} at {other_at}. Every worker must run "
        "the same operations in the same order: look for a step, a metric or a checkpoint that only some of them do",
    )


def mismatch(
    tasks: Sequence[str], one: int, lines: Sequence[str], other: int, other_lines: Sequence[str], at: str
) -> Failure:
    """Two workers do the same with different arrays; names the first that differs."""
    for index in range(max(len(lines), len(other_lines))):
        mine = lines[index] if index < len(lines) else "missing"
        theirs = other_lines[index] if index < len(other_lines) else "missing"
        if mine != theirs:
            break
    else:
        index, mine, theirs = 0, "one thing", "another"
    return Failure(
        "mismatch",
        other,
        f"the workers do not have the same arrays for {at}: number {index} of {len(lines)} is {mine} at {tasks[one]}, "
        f"and of {len(other_lines)} it is {theirs} at {tasks[other]}. Build the same model with the same options on "
        "every worker",
    )
