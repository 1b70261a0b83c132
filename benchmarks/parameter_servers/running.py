"""A contender of these races: its servers and workers, of which worker 0 is measured, or all if they are alone."""

import contextlib
import json
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from benchmarks.parameter_servers.task import Task
from benchmarks.racing.measuring import Turn
from benchmarks.racing.processes import PATIENCE, Failed, Processes, fair_environment, python_module
from benchmarks.racing.races import Contender
from benchmarks.racing.work import Work
from stratagem.tools.launch.tasks import ReservedPort

FIRST_SECONDS = 1.0
ROOT = Path(__file__).parents[2]
CHILD = str(Path(__file__).with_name("child.py"))


@dataclass(frozen=True)
class Job(Contender):
    """A way to train with one server and some workers.

    Attributes:
        launch: Who starts its processes: `stratagem run`, or the harness: `with a server`, workers `in step` with each
            other, or workers `alone`, each with a model of its own.
        servers: How many servers there are, under `stratagem run`.
        replicas: How many replicas share a batch.
        environ: Variables of its own.
    """

    launch: Literal["stratagem run", "with a server", "in step", "alone"] = "stratagem run"
    servers: int = 1
    replicas: int = 1
    environ: dict[str, str] = field(default_factory=dict)

    def told(self, sizes: tuple[int, ...], threads: int | None) -> str:
        """What its processes are told to train, with so many threads."""
        return Task(Work(sizes, self.replicas), threads=threads).to_json()


class RunningJob:
    """A job with its processes, at a number of threads.

    Args:
        job: The contender.
        told: What its processes are told besides: their task.
        threads: How many threads each process computes with.
        child: The program that its processes run.
        patience: Seconds to wait for any answer of theirs.
    """

    def __init__(
        self, job: Job, told: str, threads: int | None, child: str = CHILD, patience: float = PATIENCE
    ) -> None:
        self._job = job
        arguments = (job.module, job.function, told)
        environ = {**fair_environment(threads), "PYTHONPATH": str(ROOT), **job.environ}
        with contextlib.ExitStack() as stack:
            self._processes = stack.enter_context(Processes(job.processes, patience))
            if job.launch == "stratagem run":
                counts = ("--ps", str(job.servers), "--workers", str(job.processes))
                self._processes.start(python_module("stratagem", "run", *counts, child, *arguments), environ)
            else:
                self._start_by_hand((sys.executable, child, *arguments), environ)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait_until_ready(self) -> None:
        """Return when every worker is ready to train."""
        self._processes.wait_until_ready()

    def warm_up(self) -> None:
        """Train for the first time. Losses are not compared: they depend on the order of pushes."""
        self.turn(FIRST_SECONDS)

    def turn(self, seconds: float) -> Turn:
        """Train for so long; what counts is global steps."""
        everyone = range(self._job.processes)
        measured = everyone if self._job.launch == "alone" else everyone[:1]
        followers = [index for index in everyone if index not in measured]
        before = self._processes.cpu_seconds()
        for index in followers:
            self._processes.say(index, "follow")
        for index in measured:
            self._processes.say(index, f"go {seconds}")
        answers = [[float(word) for word in line.split()] for line in self._processes.hear(measured)]
        used = self._processes.cpu_seconds() - before
        for index in followers:
            self._processes.say(index, "stop")
        for _, _, _, loss in answers:
            if not math.isfinite(loss):
                raise Failed(f"the loss became {loss}")
        return Turn(
            sum(steps / took for _, steps, took, _ in answers), used / sum(total for total, *_ in answers)
        )

    def reach(self, steps: int) -> tuple[int, float]:
        """Train for so many global steps, the same number by every worker; what worker 0 then finds on the servers."""
        everyone = range(self._job.processes)
        for index in everyone:
            self._processes.say(index, f"steps {steps // len(everyone)}")
        self._processes.hear(everyone)
        self._processes.say(0, "steps 0")
        step, found = self._processes.hear([0])[0].split()
        return int(step), float(found)

    def peak_memory(self) -> dict[str, int]:
        """The most bytes that a process of each kind of task has had: `ps` and `worker`."""
        return self._processes.peak_memory()

    def _start_by_hand(self, command: tuple[str, ...], environ: dict[str, str]) -> None:
        counts = {"worker": self._job.processes, "ps": int(self._job.launch == "with a server")}
        with contextlib.ExitStack() as stack:
            ports = {
                name: [stack.enter_context(contextlib.closing(ReservedPort())) for _ in range(count)]
                for name, count in counts.items()
            }
            cluster = {name: [port.address for port in each] for name, each in ports.items() if each}
        for name, addresses in cluster.items():
            for index in range(len(addresses)):
                place = {"cluster": cluster, "task": {"type": name, "index": index}}
                self._processes.start(
                    command, {**environ, "TF_CONFIG": json.dumps(place)}, leaves=name != "ps"
                )
