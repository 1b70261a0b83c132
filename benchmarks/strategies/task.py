"""What the harness tells a contender's process, and how the two talk: a line each way.

The process says `ready`, or `skip` and why. Told `go 100`, it trains for 100 steps and answers with the seconds
that they took and the last loss. It ends when its standard input does.
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Self

from benchmarks.strategies.work import Work

Run = Callable[[int], float]
"""Trains for so many steps, waits until they are done, and returns the last loss."""
Start = Callable[["Task"], Run]
"""Makes ready to train: what a contender is."""

_DIE_WITH_PARENT = 1


class Absent(Exception):
    """A contender cannot take part here, and this is why."""


@dataclass(frozen=True)
class Task:
    """One process of a contender.

    Attributes:
        work: What to train.
        index: Which worker this is.
        addresses: Where the workers meet, by index; empty for a contender of one process.
        meeting_file: A file for the same, for those who rather meet in one.
        threads: How many threads to compute with; None leaves it to the framework.
    """

    work: Work
    index: int = 0
    addresses: tuple[str, ...] = ()
    meeting_file: str = ""
    threads: int | None = None

    def to_json(self) -> str:
        """The task as one argument of a command."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The task that `to_json` wrote."""
        fields = json.loads(text)
        work = Work(tuple(fields["work"]["sizes"]), fields["work"]["replicas"])
        return cls(**{**fields, "work": work, "addresses": tuple(fields["addresses"])})


def answer(start: Callable[[], Run]) -> None:
    """Be a contender's process: make ready, then train as often as told."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    # What libraries print must not come between our lines: their standard output is standard error.
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        run = start()
    except (Absent, ImportError) as error:
        print("skip", str(error).splitlines()[0], file=lines)
        return
    print("ready", file=lines)
    for line in sys.stdin:
        steps = int(line.removeprefix("go "))
        began = time.perf_counter()
        loss = run(steps)
        print(time.perf_counter() - began, loss, file=lines)
