"""A contender of these races: its servers and workers. Worker 0 is measured, or every worker if they train alone."""

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
        servers: Number of servers, under `stratagem run`.
        replicas: Number of replicas that share a batch.
        environ: Further environment variables.
    """

    launch: Literal["stratagem run", "with a server", "in step", "alone"] = "stratagem run"
    servers: int = 1
    replicas: int = 1
    environ: dict[str, str] = field(default_factory=dict)

    def task_json(self, sizes: tuple[int, ...], threads: int | None) -> str:
        """Return the task of its processes, as JSON, for a number of threads."""
        return Task(Work(sizes, self.replicas), threads=threads).to_json()


class RunningJob:
    """A job with its processes, at a number of threads.

    Args:
        job: The contender.
        task_json: The task of its processes, as JSON.
        threads: Number of threads of each process.
        child: The program of its processes.
        patience: Seconds to wait for an answer.
    """

    def __init__(
        self, job: Job, task_json: str, threads: int | None, child: str = CHILD, patience: float = PATIENCE
    ) -> None:
        self._job = job
        arguments = (job.module, job.function, task_json)
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
        """Wait until every worker is ready to train."""
        self._processes.wait_until_ready()

    def warm_up(self) -> None:
        """Train for the first time. Losses are not compared: they depend on the order of pushes."""
        self.turn(FIRST_SECONDS)

    def turn(self, seconds: float) -> Turn:
        """Train for a number of seconds, and count global steps."""
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
        """Train for a number of global steps, the same for every worker. Return what worker 0 then finds on the servers."""
        everyone = range(self._job.processes)
        for index in everyone:
            self._processes.say(index, f"steps {steps // len(everyone)}")
        self._processes.hear(everyone)
        self._processes.say(0, "steps 0")
        step, found = self._processes.hear([0])[0].split()
        return int(step), float(found)

    def peak_memory(self) -> dict[str, int]:
        """Return the peak memory of a process of each kind of task: `ps` and `worker`."""
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
