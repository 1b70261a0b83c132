"""Kill parameter servers, workers and the chief at random moments: training finishes, and its counts are right."""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from random import Random

from drills import counted
from drills.processes import Marked, NotInTime, launcher, until
from drills.table import Outcome

SCRIPT = counted.TASK
RULES = {
    "async": "sg.Async()",
    "sync with a backup": "sg.Sync(replicas_to_aggregate=2, total_num_replicas=3)",
    "bounded staleness": "sg.BoundedStaleness(4)",
    "sync": "sg.Sync()",
    "async, overlapping": "sg.Async(overlap=True)",
}
SERVERS, WORKERS = 2, 3
SECONDS = 120.0
"""Within which a round must be over, on a machine that is busy with other things too."""
FURTHER = 50
"""Steps that are trained after the last kill."""
CHECKED = "training ends well; every element has had as many updates as the step says"


class _Job:
    """One run of `stratagem run`, seen from outside."""

    def __init__(self, marked: Marked, directory: Path) -> None:
        self.marked = marked
        self.directory = directory

    def pids(self, task: str) -> list[int]:
        """The process of a task, such as `ps:1`; none while it is being started again."""
        job, _, index = task.partition(":")
        wanted = f'"task": {{"type": "{job}", "index": {index}}}'.encode()
        found = []
        for pid, line in self.marked.processes().items():
            with contextlib.suppress(OSError):  # gone while we looked
                if "keeper.py" not in line and wanted in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
        return found

    def kill(self, task: str) -> None:
        """End a task without a warning."""
        for pid in until(f"{task} to be there", lambda: self.pids(task), SECONDS):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def problem(self, log: str) -> str | None:
        """What is not as it should be, now that it has ended."""
        if (code := self.marked.process.returncode) != 0:
            return f"it ended with {code}"
        if (found := counted.problem(self.directory, WORKERS)) is not None:
            return found
        kept = re.findall(r"last snapshots are in (\S+)", log)
        return f"snapshots are left in {kept}" if kept else None


def drill(random: Random, rule: str, kills: int) -> Outcome:
    """One round: so many tasks killed, each at a moment of its own."""
    victims = [
        random.choice(
            [f"ps:{random.randrange(SERVERS)}", f"worker:{random.randrange(1, WORKERS)}", "worker:0"]
        )
        for _ in range(kills)
    ]
    moments = [random.uniform(0.0, 1.5) for _ in range(kills)]
    is_early = random.random() < 0.2
    name = f"parameter servers, {rule}: kill -9"
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryFile() as log:
        arguments = ("--ps", str(SERVERS), "--workers", str(WORKERS), "--max-restarts", str(kills))
        with launcher(
            *arguments,
            SCRIPT,
            RULES[rule],
            place,
            stdout=subprocess.DEVNULL,
            stderr=log,
            environ={
                "PYTHONPATH": str(SCRIPT.parent.parent),
                "XLA_FLAGS": "--xla_backend_optimization_level=0",
            },
        ) as marked:
            job = _Job(marked, Path(place))
            try:
                problem = _run(job, victims, moments, is_early)
            except (NotInTime, subprocess.TimeoutExpired) as error:
                problem = str(error)
            log.seek(0)
            text = log.read().decode(errors="replace")
            problem = problem or job.problem(text)
    seconds = time.monotonic() - began
    told = problem and f"{problem}; killed: {', '.join(victims)}; its log ends: {text[-3000:]}"
    return Outcome(name, seconds, told, CHECKED)


def _run(job: _Job, victims: list[str], moments: list[float], is_early: bool) -> str | None:
    """Break it, let it finish, and see that nothing is left."""
    if not is_early:
        until(
            "the first update",
            lambda: counted.reached(job.directory) or job.marked.process.poll() is not None,
            SECONDS,
        )
    for victim, moment in zip(victims, moments, strict=True):
        time.sleep(moment)  # the moment is what is random here, not something to wait for
        if job.marked.process.poll() is not None:
            return "it ended too early"
        job.kill(victim)
    counted.set_target(job.directory, counted.reached(job.directory) + FURTHER)
    job.marked.process.wait(SECONDS)
    job.marked.gone(5.0)
    return None


def drills(rounds: int, seed: int, kills: int = 3) -> list[Outcome]:
    """So many rounds, over all rules in turn, as rows of the table."""
    random = Random(seed)
    rules = list(RULES)
    return [drill(random, rules[number % len(rules)], kills) for number in range(rounds)]
