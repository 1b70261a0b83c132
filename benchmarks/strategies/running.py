"""A contender of these races: its processes, which all train the same number of steps."""

import contextlib
import json
import math
import statistics
from typing import Self

from benchmarks.racing.measuring import Turn
from benchmarks.racing.processes import Failed, Processes, fair_environment, python_module
from benchmarks.racing.races import Contender
from benchmarks.racing.work import Work
from benchmarks.strategies.task import Task
from stratagem import environment
from stratagem.tools.launch.tasks import ReservedPort

FIRST_STEPS = 10
"""After so many steps all contenders must have the same loss; later, rounding sets them apart."""
LEAST_STEPS = 2
"""In a turn, however slow they are."""


class Running:
    """A contender with its processes, at a number of threads.

    Example:
        with Running(contender, work, devices=1, threads=None) as running:
            running.wait_until_ready()
            seconds, loss = running.go(100)
    """

    def __init__(self, contender: Contender, work: Work, devices: int, threads: int | None) -> None:
        self._contender = contender
        self._work = work
        self._steps_per_second = 0.0
        environ = fair_environment(threads, devices)
        with contextlib.ExitStack() as stack:
            self._processes = stack.enter_context(Processes(contender.processes))
            ports = [
                stack.enter_context(contextlib.closing(ReservedPort())) for _ in range(contender.processes)
            ]
            addresses = tuple(port.address for port in ports) if len(ports) > 1 else ()
            meeting_file = str(self._processes.folder / "meeting")
            for index, port in enumerate(ports):
                self._start(Task(work, index, addresses, meeting_file, threads), environ, port)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait_until_ready(self) -> None:
        """Wait until every process is ready to train."""
        self._processes.wait_until_ready()

    def warm_up(self) -> float:
        """Return the loss after the first steps."""
        loss = self.go(FIRST_STEPS)[1]
        self._steps_per_second = LEAST_STEPS / self.go(LEAST_STEPS)[0]
        return loss

    def turn(self, seconds: float) -> Turn:
        """Train for about this many seconds, and count examples."""
        steps = max(LEAST_STEPS, round(seconds * self._steps_per_second))
        before = self._processes.cpu_seconds()
        took, loss = self.go(steps)
        used = self._processes.cpu_seconds() - before
        if not math.isfinite(loss):
            raise Failed(f"the loss became {loss}")
        self._steps_per_second = steps / took
        return Turn(steps * self._work.rows / took, used / (steps * self._work.rows))

    def go(self, steps: int) -> tuple[float, float]:
        """Train for a number of steps. Return the seconds of the slowest process, and the last loss."""
        everyone = range(self._contender.processes)
        for index in everyone:
            self._processes.say(index, f"go {steps}")
        answers = [map(float, line.split()) for line in self._processes.hear(everyone)]
        seconds, losses = zip(*answers, strict=True)
        return max(seconds), statistics.mean(losses)

    def _start(self, task: Task, environ: dict[str, str], port: ReservedPort) -> None:
        command = python_module(
            "benchmarks.strategies.child", self._contender.module, self._contender.function, task.to_json()
        )
        with port.socket_for_task() as sock:
            place = {"cluster": {"worker": task.addresses}, "task": {"type": "worker", "index": task.index}}
            cluster = {"TF_CONFIG": json.dumps(place), environment.LISTEN_FD: str(sock.fileno())}
            self._processes.start(
                command, {**environ, **(cluster if task.addresses else {})}, pass_fds=(sock.fileno(),)
            )
