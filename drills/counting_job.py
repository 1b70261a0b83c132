"""A training of `counting_task.py` on parameter servers under `stratagem run`, whose tasks can be killed."""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

from drills import counting_files
from drills.nursery import Nursery, Task
from drills.processes import Marked, launcher, until
from drills.quick_compiling import QUICKLY
from stratagem.tools.launch.tasks import TaskName

RULES = {
    "async": "sg.Async()",
    "sync with a backup": "sg.Sync(replicas_to_aggregate=2, total_num_replicas=3)",
    "bounded staleness": "sg.BoundedStaleness(4)",
    "sync": "sg.Sync()",
    "async, overlapping": "sg.Async(overlap=True)",
}
SERVERS, WORKERS = 2, 3
TASKS = [f"ps:{index}" for index in range(SERVERS)] + [f"worker:{index}" for index in range(WORKERS)]
SECONDS = 120.0
"""Within which whatever is awaited must come, on a machine that is busy with other things too."""


class CountingJob:
    """One run of `stratagem run`, seen from outside.

    Example:
        with CountingJob("async", restarts=3) as job:
            job.wait_for(1)
            job.kill("ps:1")
            job.set_target(further=50)
            assert job.problem() is None
    """

    def __init__(
        self, rule: str, restarts: int, nursery: Nursery | None = None, has_table: bool = False
    ) -> None:
        """Start the job.

        Args:
            rule: A name of `RULES`.
            restarts: How often a task may be restarted.
            nursery: Forks the launcher and its tasks, and nothing else meanwhile; without it they are started.
            has_table: Whether the model has a table too.
        """
        self._place = tempfile.TemporaryDirectory()
        self._directory = Path(self._place.name)
        self._log = Path(self._place.name) / "log"
        self._log.touch()
        self._nursery = nursery
        arguments = [
            *("--ps", str(SERVERS), "--workers", str(WORKERS), "--max-restarts", str(restarts)),
            *(str(counting_files.TASK), RULES[rule], self._place.name),
            *(("3", "table") if has_table else ()),
        ]
        self._running: Marked | Task
        if nursery is not None:
            argv = ["stratagem", "run", *arguments]
            self._running = nursery.start(TaskName("launcher", 0), self._log, argv=argv, environ={})
            return
        with self._log.open("wb") as log:
            self._running = launcher(
                *arguments,
                stdout=subprocess.DEVNULL,
                stderr=log,
                environ={"PYTHONPATH": str(counting_files.TASK.parent.parent), **QUICKLY},
            )

    def __enter__(self) -> "CountingJob":
        return self

    def __exit__(self, *_: object) -> None:
        if isinstance(self._running, Marked):
            self._running.__exit__()
        elif self._running.code is None:
            self._running.kill()
        if self._nursery is not None:
            until("all processes to be gone", self._nursery.is_idle, 5.0)
        self._place.cleanup()

    @property
    def launcher(self) -> int:
        """The launcher's process."""
        return self._running.pid

    @property
    def is_over(self) -> bool:
        """Whether the launcher has ended."""
        if isinstance(self._running, Task):
            return self._running.code is not None
        return self._running.process.poll() is not None

    @property
    def reached(self) -> int:
        """The newest global step that a worker has recorded."""
        return counting_files.reached(self._directory)

    @property
    def log(self) -> str:
        """The output of the tasks and the launcher so far."""
        return self._log.read_text(errors="replace")

    def processes(self) -> dict[str, int]:
        """Return the process of each running task, such as `ps:1`."""
        if isinstance(self._running, Task):
            return self._nursery.tasks() if self._nursery is not None else {}
        found = {}
        for pid, line in self._running.processes().items():
            with contextlib.suppress(OSError):  # gone while we looked
                environ = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
                task = re.search(r'"task": \{"type": "(\w+)", "index": (\d+)\}', environ)
                if task is not None and "keeper.py" not in line:
                    found[f"{task[1]}:{task[2]}"] = pid
        return found

    def kill(self, *tasks: str) -> str | None:
        """Kill the first of these tasks that is running, and return its name."""
        processes = self.processes()
        for task in tasks:
            if task in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(processes[task], signal.SIGKILL)
                    return task
        return None

    def kill_when_there(self, *tasks: str) -> str | None:
        """Kill one of these tasks as soon as one is running. Return its name, or None if the job ended before."""
        found = until(f"one of {tasks} to be there", lambda: self.kill(*tasks) or self.is_over, SECONDS)
        return found if isinstance(found, str) else None

    def wait_for(self, step: int) -> None:
        """Wait until a worker has reached a step, or the job has ended."""
        until(f"step {step}", lambda: self.reached >= step or self.is_over, SECONDS)

    def set_target(self, further: int) -> int:
        """Let the workers stop after this number of further steps. Return the last step."""
        target = self.reached + further
        counting_files.set_target(self._directory, target)
        return target

    def problem(self) -> str | None:
        """Wait for the job's end, and return what is wrong then, if anything."""
        if isinstance(self._running, Task):
            code = self._running.ends(SECONDS)
        else:
            code = self._running.process.wait(SECONDS)
            self._running.gone(5.0)
        if code != 0:
            return f"it ended with {code}"
        if (found := counting_files.problem(self._directory, WORKERS)) is not None:
            return found
        kept = re.findall(r"last snapshots are in (\S+)", self.log)
        return f"snapshots are left in {kept}" if kept else None
