"""What a job consists of: its tasks, the command of each and the environment of each. Pure."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stratagem import environment
from stratagem.errors import LaunchError
from stratagem.launch.task import TaskName


@dataclass(frozen=True)
class JobShape:
    """How many tasks of each kind, and what they run.

    Attributes:
        command: The user's command, such as `("python", "train.py", "--steps", "100")`.
        workers: Number of worker tasks; worker 0 is the chief.
        ps: Number of parameter servers.
        evaluator: Whether there is an evaluator beside the cluster.
    """

    command: tuple[str, ...]
    workers: int = 1
    ps: int = 0
    evaluator: bool = False

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise LaunchError(f"--workers {self.workers}: a job needs at least 1 worker")
        if self.ps < 0:
            raise LaunchError(f"--ps {self.ps}: give 0 or more parameter servers")

    @property
    def tasks(self) -> tuple[TaskName, ...]:
        """Every task, servers first: they are up when the workers look for them."""
        counts = {"ps": self.ps, "worker": self.workers, "evaluator": int(self.evaluator)}
        return tuple(TaskName(job, index) for job, count in counts.items() for index in range(count))


def command_of(script: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """The command that runs a user's script: Python for `.py` files, the file itself otherwise."""
    path = Path(script)
    if not path.exists():
        raise LaunchError(f"there is no file {script!r}: give the path of the script to run")
    if path.is_dir():
        raise LaunchError(f"{script!r} is a directory: give the path of the script to run")
    if path.suffix == ".py":
        return (sys.executable, script, *arguments)
    if not path.stat().st_mode & 0o111:
        raise LaunchError(f"{script!r} is neither a .py file nor executable: rename it, or chmod +x it")
    return (str(path.resolve()), *arguments)


def tf_config(task: TaskName, addresses: Mapping[TaskName, str]) -> str:
    """TF_CONFIG of one task. The evaluator stands outside the cluster, as in TensorFlow."""
    cluster: dict[str, list[str]] = {}
    for other, address in addresses.items():
        if other.job != "evaluator":
            cluster.setdefault(other.job, []).append(address)
    return json.dumps({"cluster": cluster, "task": {"type": task.job, "index": task.index}})


def task_environment(
    task: TaskName,
    generation: int,
    addresses: Mapping[TaskName, str],
    inherited: Mapping[str, str],
    run_id: str,
) -> dict[str, str]:
    """The environment of one task: the launcher's own, and what makes it this task of this run."""
    return {
        **inherited,
        "PYTHONUNBUFFERED": "1",  # or a task's lines would come in blocks, long after they were printed
        "TF_CONFIG": tf_config(task, addresses),
        environment.RUN_ID: run_id,
        environment.GENERATION: str(generation),
    }
