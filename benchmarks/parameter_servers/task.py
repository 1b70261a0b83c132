"""What the harness tells a contender's process, and what the process does when told.

`go 0.5` is for those who are measured: train on for half a second and answer with the global steps that were made
since the word was given, those that were made in the time that counts, its seconds and the last loss. `follow` is for the other workers of a job: train until there is news. `steps 1500` is for all workers: take so many
steps and answer with the global step and the last loss.
"""

import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from benchmarks.racing.conversation import Conversation, begin, end_with_harness
from benchmarks.racing.work import Work

Run = Callable[[Iterable[object]], tuple[int, float]]
"""Takes one step for each element; the global step and the loss after the last."""
Start = Callable[[Any], Run]
"""Makes ready to train for a task: what a contender is."""
SETTLING = 0.15
"""Seconds to train before a measurement, so that all workers are at it."""


@dataclass(frozen=True)
class Placed:
    """Which of a contender's processes this is stands in TF_CONFIG, as for users.

    Attributes:
        threads: How many threads to compute with; None leaves it to the framework.
    """

    threads: int | None = field(default=None, kw_only=True)

    @property
    def cluster(self) -> dict[str, list[str]]:
        """The addresses of all tasks."""
        told: dict[str, list[str]] = json.loads(os.environ["TF_CONFIG"])["cluster"]
        return told

    @property
    def job(self) -> str:
        """`ps` or `worker`."""
        return str(json.loads(os.environ["TF_CONFIG"])["task"]["type"])

    @property
    def index(self) -> int:
        """Which worker this is."""
        return int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])

    def to_json(self) -> str:
        """The task as one argument of a command."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Task(Placed):
    """What a contender's processes are to do.

    Attributes:
        work: What to train; its replicas are those that share a batch.
    """

    work: Work

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The task that `to_json` wrote."""
        fields = json.loads(text)
        return cls(
            Work(tuple(fields["work"]["sizes"]), fields["work"]["replicas"]), threads=fields["threads"]
        )


def be(task: Placed, contenders: str, module: str, function: str) -> None:
    """Be a process of a contender: serve, or train as often as told.

    Args:
        task: What to do, and which of the processes this is.
        contenders: The package of the contenders.
        module: The contender's module there.
        function: What makes it ready to train.
    """
    home = f"{contenders}.{module}"
    if task.job == "ps":
        end_with_harness()
        importlib.import_module(home).serve(task)

    def start() -> Run:
        begin_training: Start = getattr(importlib.import_module(home), function)
        return begin_training(task)

    _answer(task.index, start)
    sys.stderr.flush()
    if module.startswith("tensorflow"):
        os._exit(0)  # the harness has what it wants, and TensorFlow waits for its peers at a normal exit


def _answer(index: int, start: Callable[[], Run]) -> None:
    """Be a worker of a contender: make ready, then train as often as told."""
    conversation, run = begin(index, start)
    if run is None:
        return
    told = 0
    for line in conversation.lines():
        match line.split():
            case ["go", seconds]:
                first, _ = run(_until(time.perf_counter() + SETTLING))
                began = time.perf_counter()
                last, loss = run(_until(began + float(seconds)))
                conversation.say(f"{last - told} {last - first} {time.perf_counter() - began} {loss}")
                told = last
            case ["steps", number]:
                at, loss = run(itertools.repeat(None, int(number)))
                conversation.say(f"{at} {loss}")
            case ["follow"]:
                run(_until_news(conversation))
            case _:
                pass  # `stop` has done what it was for by being there


def _until(end: float) -> Iterator[None]:
    yield None
    while time.perf_counter() < end:
        yield None


def _until_news(conversation: Conversation) -> Iterator[None]:
    while not conversation.has_news():
        yield None
