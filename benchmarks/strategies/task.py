"""What the harness tells a contender's process, and what the process does when told `go 100`: train for 100 steps.

It answers with the seconds that they took and the last loss.
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


def answer(index: int, start: Callable[[], Run]) -> None:
    """Be a contender's process: make ready, then train as often as told."""
    conversation, run = begin(index, start)
    if run is None:
        return
    for line in conversation.lines():
        steps = int(line.removeprefix("go "))
        began = time.perf_counter()
        loss = run(steps)
        conversation.say(f"{time.perf_counter() - began} {loss}")
