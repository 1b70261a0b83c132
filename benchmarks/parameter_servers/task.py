"""The harness's messages to a contender's process, and how the process answers.

`go 0.5` is for workers that are measured: train for another half second and answer with the global steps that were made since
the message, those that were made in the measured time, its seconds and the last loss. `follow` is for the other workers of a
job: train until the next message. `steps 1500` is for all workers: take this many steps and answer with the global step and
the last loss.
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
    """A task whose place in the cluster TF_CONFIG defines, as for users.

    Attributes:
        threads: Number of threads; None leaves it to the framework.
    """

    threads: int | None = field(default=None, kw_only=True)

    @property
    def cluster(self) -> dict[str, list[str]]:
        """The addresses of all tasks."""
        cluster: dict[str, list[str]] = json.loads(os.environ["TF_CONFIG"])["cluster"]
        return cluster

    @property
    def job(self) -> str:
        """`ps` or `worker`."""
        return str(json.loads(os.environ["TF_CONFIG"])["task"]["type"])

    @property
    def index(self) -> int:
        """The index of this worker."""
        return int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])

    def to_json(self) -> str:
        """Return the task as one argument of a command."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Task(Placed):
    """The task of a contender's processes.

    Attributes:
        work: The work; its replicas share a batch.
    """

    work: Work

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a task from the text of `to_json`."""
        fields = json.loads(text)
        return cls(
            Work(tuple(fields["work"]["sizes"]), fields["work"]["replicas"]), threads=fields["threads"]
        )


def be(task: Placed, contenders: str, module: str, function: str) -> None:
    """Run as a process of a contender: serve, or train as the harness asks.

    Args:
        task: The task.
        contenders: The package of the contenders.
        module: The contender's module there.
        function: The function that prepares it for training.
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
    """Run as a worker of a contender: prepare, then train as the harness asks."""
    conversation, run = begin(index, start)
    if run is None:
        return
    reported = 0
    for line in conversation.lines():
        match line.split():
            case ["go", seconds]:
                first, _ = run(_until(time.perf_counter() + SETTLING))
                began = time.perf_counter()
                last, loss = run(_until(began + float(seconds)))
                conversation.say(f"{last - reported} {last - first} {time.perf_counter() - began} {loss}")
                reported = last
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
