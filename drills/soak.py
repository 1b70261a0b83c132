"""`python -m drills.soak --minutes 60`: train while tasks are killed, and check that nothing grows in any task.

Memory, descriptors and threads of every task are read each second, and the slope of the line through the readings is checked:
two points of a fluctuating quantity tell nothing. Some tasks live as long as the job, so that anything the others leave in
them would add up; the launcher is one of them.
"""

import argparse
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

from drills.counting_job import TASKS, CountingJob
from drills.processes import descriptors, let_children_be_signalled
from drills.slopes import Slope, later_half, slope

RULE = "async"
SPARED = ("ps:0", "worker:0")
"""Tasks that live as long as the job."""
VICTIMS = [task for task in TASKS if task not in SPARED]
LAUNCHER = "launcher"
KILL_EVERY, READ_EVERY = 20.0, 1.0
WARM_UP = 30.0
"""Seconds of a process's life in which it may grow: it imports, compiles, and fills what it keeps."""
FURTHER = 50
"""Steps that are trained after the last kill."""
ALLOWED = {"memory, MB": 20.0, "descriptors": 5.0, "threads": 5.0}
"""What is read of a process, and by how much it may grow in an hour."""


class Readings:
    """The readings of every process of a job, by task, in the order of `ALLOWED`."""

    def __init__(self) -> None:
        self._born: dict[tuple[str, int], float] = {}
        self._lives: dict[tuple[str, int], list[tuple[float, list[float]]]] = defaultdict(list)

    def read(self, task: str, pid: int) -> None:
        """Read one process, unless it has just ended."""
        now = time.monotonic()
        age = now - self._born.setdefault((task, pid), now)
        try:
            values = _values(pid)
        except (OSError, KeyError):  # it has ended; of what has not been waited for yet, no memory is told
            return
        if age >= WARM_UP:
            self._lives[task, pid].append((age, values))

    def processes(self, task: str) -> int:
        """Return the number of processes that a task has had."""
        return sum(each == task for each, _ in self._born)

    def slopes(self, task: str) -> list[Slope]:
        """Return the slope of each quantity over all processes that a task has had, in the later half of their lives."""
        lives = [life for (each, _), life in self._lives.items() if each == task]
        return [
            slope([later_half([(age, values[index]) for age, values in life]) for life in lives])
            for index in range(len(ALLOWED))
        ]


def _values(pid: int) -> list[float]:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return [int(status["VmRSS"].split()[0]) / 1000, descriptors(pid), int(status["Threads"])]


def soak(minutes: float, seed: int) -> tuple[Readings, str | None]:
    """Train for a number of minutes, with a kill every 20 seconds. Return the readings, and what was wrong at the end."""
    random = Random(seed)
    readings = Readings()
    kills = 0
    began = time.monotonic()
    # Whoever waits for a killed one in vain is started again too.
    with CountingJob(RULE, restarts=4 * int(minutes * 60 / KILL_EVERY) + 4) as job:
        job.wait_for(1)
        while time.monotonic() - began < minutes * 60 and not job.is_over:
            for task, pid in {**job.processes(), LAUNCHER: job.launcher}.items():
                readings.read(task, pid)
            if time.monotonic() - began > (kills + 1) * KILL_EVERY:
                kills += 1
                # Any of those that are there: one that was too slow to come back may have been given up.
                job.kill_when_there(*random.sample(VICTIMS, len(VICTIMS)))
                print(f"{time.monotonic() - began:.0f} s: {kills} kills, step {job.reached}", flush=True)
            time.sleep(READ_EVERY)  # the distance of the readings, not something to wait for
        job.set_target(FURTHER)
        problem = job.problem()
        return readings, problem and f"{problem}; its log ends: {job.log[-3000:]}"


def show(readings: Readings) -> list[str]:
    """Print a row per task, and return which of them grow."""
    table = Table("task", "processes", *(f"{name} per hour" for name in ALLOWED), title="Growth")
    growing = []
    for task in (LAUNCHER, *TASKS):
        slopes = readings.slopes(task)
        table.add_row(task, str(readings.processes(task)), *map(str, slopes))
        growing += [
            f"{task}: {name}, {found} in an hour, and at most {allowed:g} is allowed"
            for found, (name, allowed) in zip(slopes, ALLOWED.items(), strict=True)
            if found.is_beyond(allowed)
        ]
    Console().print(table)
    return growing


def main(argv: list[str] | None = None) -> int:
    """Soak. Return 1 if something grew or training did not end well, else 0."""
    parser = argparse.ArgumentParser(
        prog="soak", description="Train with a kill every 20 s; nothing may grow."
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="the same seed kills the same tasks")
    options = parser.parse_args(argv)
    if not options.minutes > 0:
        parser.error(f"--minutes is {options.minutes:g}; more than 0 is needed")
    let_children_be_signalled()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through the finally clauses
    readings, problem = soak(options.minutes, options.seed)
    problems = [*show(readings), *([problem] if problem else [])]
    for each in problems:
        print(each)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
