"""The harness's message to a contender's process, `go 100`: train for 100 steps.

The process answers with their seconds and the last loss.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Self

from benchmarks.racing.conversation import begin
from benchmarks.racing.work import Work

Run = Callable[[int], float]
"""Trains for so many steps, waits until they are done, and returns the last loss."""
Start = Callable[["Task"], Run]
"""Makes ready to train: what a contender is."""


@dataclass(frozen=True)
class Task:
    """One process of a contender.

    Attributes:
        work: The work.
        index: The index of this worker.
        addresses: The addresses of the workers, by index; empty for a contender of one process.
        meeting_file: A file by which workers find each other, for frameworks that prefer one.
        threads: Number of threads; None leaves it to the framework.
    """

    work: Work
    index: int = 0
    addresses: tuple[str, ...] = ()
    meeting_file: str = ""
    threads: int | None = None

    def to_json(self) -> str:
        """Return the task as one argument of a command."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a task from the text of `to_json`."""
        fields = json.loads(text)
        work = Work(tuple(fields["work"]["sizes"]), fields["work"]["replicas"])
        return cls(**{**fields, "work": work, "addresses": tuple(fields["addresses"])})


def answer(index: int, start: Callable[[], Run]) -> None:
    """Run as a contender's process: prepare, then train as the harness asks."""
    conversation, run = begin(index, start)
    if run is None:
        return
    for line in conversation.lines():
        steps = int(line.removeprefix("go "))
        began = time.perf_counter()
        loss = run(steps)
        conversation.say(f"{time.perf_counter() - began} {loss}")
