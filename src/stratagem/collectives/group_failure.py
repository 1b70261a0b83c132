"""Why a group of workers cannot go on: one reason, which every worker learns and raises."""

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
_ERRORS: dict[str, type[RemoteError]] = {
    "lost": WorkerLost,
    "out of step": RemoteError,
    "mismatch": VariableMismatch,
}
_START_AGAIN = (
    "The others cannot go on without it: start all workers again, as a new generation "
    "(`stratagem run --max-restarts N` does so by itself)"
)


@dataclass(frozen=True)
class GroupFailure:
    """A reason, in words that are true on whichever worker they are read.

    Attributes:
        kind: `lost`, `out of step` or `mismatch`.
        worker: The index of the worker that is at fault; `None` if it cannot be said.
        text: What happened and what to do.
    """

    kind: str
    worker: int | None
    text: str

    def __post_init__(self) -> None:
        is_index = self.worker is None or (isinstance(self.worker, int) and self.worker >= 0)
        if self.kind not in _ERRORS or not is_index or not isinstance(self.text, str):
            raise ProtocolError(f"not a group's failure: {self!r:.200}")

    @classmethod
    def from_fields(cls, fields: Fields) -> "GroupFailure":
        """Return the failure that another worker reports."""
        return cls(fields.get("kind", ""), fields.get("worker"), fields.get("text", ""))

    def to_fields(self) -> Fields:
        """Return the failure as a message's plain fields."""
        return {"kind": self.kind, "worker": self.worker, "text": self.text}

    def error(self, tasks: Sequence[str], prefix: str = "") -> RemoteError:
        """Return a new exception to raise, its text behind a prefix."""
        error = _ERRORS[self.kind](prefix + self.text)
        if self.worker is not None and self.worker < len(tasks):
            error.task = tasks[self.worker]
        return error


def worker_lost(tasks: Sequence[str], worker: int, reason: str | RemoteError) -> GroupFailure:
    """Return the failure that a worker died or does not answer, as an error of a call shows or a text says."""
    text = reason if isinstance(reason, str) else _reason_of(reason)
    return GroupFailure("lost", worker, f"{tasks[worker]} is lost: {text.rstrip('.')}. {_START_AGAIN}")


def _reason_of(error: RemoteError) -> str:
    """Describe the loss that an error shows to a reader who does not know our calls."""
    _log.debug("a sign of a lost worker: %s", error)
    if isinstance(error, TaskLost | TaskUnreachable):
        return "its connection broke: either its process has ended, or the network has failed"
    if isinstance(error, DeadlineExceeded):
        return "it has given no sign of life in time: either it hangs, or the network has failed"
    return first_line(error)


def worker_left(tasks: Sequence[str], worker: int, after: int, other: int, place: str) -> GroupFailure:
    """Return the failure that a worker closed its group while another goes on."""
    return GroupFailure(
        "lost",
        worker,
        f"{tasks[worker]} has left the group after operation {after}, and {tasks[other]} begins {place}. Every "
        "worker must take the same number of steps: give all of them the same number of batches, or use "
        "strategy.distribute_from_function, where one whose data have ended takes part with nothing to add",
    )


def out_of_step(tasks: Sequence[str], one: int, place: str, other: int, other_place: str) -> GroupFailure:
    """Return the failure that two workers run different operations."""
    return GroupFailure(
        "out of step",
        other,
        f"the workers are out of step: {tasks[one]} is at {place}, {tasks[other]} at {other_place}. Every worker must "
        "run the same operations in the same order: look for a step, a metric or a checkpoint that only some of them do",
    )


def arrays_differ(
    tasks: Sequence[str], one: int, arrays: Sequence[str], other: int, other_arrays: Sequence[str], place: str
) -> GroupFailure:
    """Return the failure that two workers run one operation with different arrays; it names the first that differs."""
    for index in range(max(len(arrays), len(other_arrays))):
        mine = arrays[index] if index < len(arrays) else "missing"
        theirs = other_arrays[index] if index < len(other_arrays) else "missing"
        if mine != theirs:
            break
    else:
        index, mine, theirs = 0, "one thing", "another"
    return GroupFailure(
        "mismatch",
        other,
        f"the workers do not have the same arrays for {place}: number {index} of {len(arrays)} is {mine} at "
        f"{tasks[one]}, and of {len(other_arrays)} it is {theirs} at {tasks[other]}. Build the same model with the "
        "same options on every worker",
    )
