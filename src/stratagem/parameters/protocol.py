"""The words in which workers and parameter servers talk: names of calls, states of answers, times."""

from typing import Any, Final, TypeAlias

FOUND, PROGRAM, FILL, OPEN, JOIN, PAUSE = (
    "parameters.found",
    "parameters.program",
    "parameters.fill",
    "parameters.open",
    "parameters.join",
    "parameters.pause",
)
"""How a model comes to the servers, and workers to it."""
PUSH, PULL, HOLD, READ, RELEASE = (
    "parameters.push",
    "parameters.pull",
    "parameters.hold",
    "parameters.read",
    "parameters.release",
)
"""How a worker trains it, and reads all of it."""
STAGE, ASSIGN, KEEP, KEPT = (
    "parameters.stage",
    "parameters.assign",
    "parameters.keep",
    "parameters.kept",
)
"""How the chief sets values, and has every server write its own into a checkpoint."""
ENDED, AGREE, MARK, MARKED = (
    "parameters.ended",
    "parameters.agree",
    "parameters.mark",
    "parameters.marked",
)
"""How workers that are not in step look at the same values: the third comes from server 0."""
GATHER, SAME, NOTE, NOTED = "parameters.gather", "parameters.same", "parameters.note", "parameters.noted"
"""How workers share small things with each other."""
ARRIVED, DECISION, PARTIALS, BROKEN, BEGIN, RESTORE, TAKE, SNAPSHOT, FORGET = (
    "parameters.arrived",
    "parameters.decision",
    "parameters.partials",
    "parameters.broken",
    "parameters.begin",
    "parameters.restore",
    "parameters.take",
    "parameters.snapshot",
    "parameters.forget",
)
"""How servers act as one: the first four are for server 0, the others come from it."""

STATE: Final = "state"
OK, PENDING, SEND, ROLLED_BACK, WAIT, WANTED, LOST, OVER, REPLACED = (
    "ok",
    "pending",
    "send",
    "rolled back",
    "wait",
    "wanted",
    "lost",
    "over",
    "replaced",
)
"""An answer: here it is; ask again; send it again; there is nothing here that the worker knows of, since servers went
back to an earlier step or begin anew; something is missing; the chief is to bring values; values are lost for good;
this worker is not needed any more; a newer start of it has taken its place."""
Reading: TypeAlias = float | list[Any]
"""A metric as it is told: a number, or a list of them for one that has several."""
PATIENCE: Final = 1.0
"""Seconds for which a server lets a caller wait before it says that it is still alive."""
CALL_SECONDS: Final = 20.0
"""Seconds within which a server that lives has said something, also if it has a large model to send."""
