"""The shape of a local job: its tasks, and the command and environment of each. Pure."""

import json
import os
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stratagem import environment
from stratagem.devices import virtual_device_environment
from stratagem.errors import LaunchError
from stratagem.tools.launch.running_jobs import RunningJob
from stratagem.tools.launch.tasks import TaskName

SERVE = (sys.executable, "-P", "-m", "stratagem", "serve")
"""The command of a task that runs no code of the user's, not even by way of the current directory."""
MOST_TASKS = 1000
_TUNABLES = "GLIBC_TUNABLES"
_COPY_PAST_CACHES = "glibc.cpu.x86_non_temporal_threshold"
_COPY_PAST_CACHES_FROM = 1 << 20  # bytes


@dataclass(frozen=True)
class JobShape:
    """The number of tasks of each job, and their commands."""

    command: tuple[str, ...]  # the user's command, such as `("python", "train.py", "--steps", "100")`
    workers: int = 1  # number of workers; worker 0 is the chief, unless there is a single client
    ps: int = 0
    evaluator: bool = False  # whether there is an evaluator beside the cluster
    single_client: bool = False  # whether the command runs once, as the chief, and the workers only serve
    # Modules that tasks which only serve may import: for datasets on the workers of a single client, else for update rules
    # on parameter servers.
    allowed_imports: tuple[str, ...] = ()
    # Where those tasks also look for these modules: the directory of the user's script.
    import_directory: str | None = None
    devices_per_worker: int | None = None  # number of devices of each worker; all that it finds by default
    # The GPUs of this machine, as CUDA_VISIBLE_DEVICES names them, to divide among the workers.
    gpus: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise LaunchError(f"--workers {self.workers}: a job needs at least 1 worker")
        if self.ps < 0:
            raise LaunchError(f"--ps {self.ps}: give 0 or more parameter servers")
        if len(self.tasks) > MOST_TASKS:
            raise LaunchError(
                f"{self.ps} parameter servers and {self.workers} workers are {len(self.tasks)} tasks, and all would run on this "
                f"machine: ask for at most {MOST_TASKS}. For a cluster of many machines see stratagem emit"
            )
        if self.allowed_imports and not (self.single_client or self.ps):
            raise LaunchError(
                f"--allow-import {self.allowed_imports[0]} is for tasks that only serve: add --single-client or --ps, or leave "
                "it out, since workers that run SCRIPT can import any module"
            )
        if self.devices_per_worker is not None and self.devices_per_worker < 1:
            raise LaunchError(
                f"--devices-per-worker {self.devices_per_worker}: a worker needs at least 1 device"
            )
        devices = self.workers * (self.devices_per_worker or 0)
        if 0 < len(self.gpus) < devices:
            raise LaunchError(
                f"{self.workers} workers with {self.devices_per_worker} devices each need {devices} GPUs, and this machine "
                f"has {len(self.gpus)}: ask for fewer, or hide the GPUs (JAX_PLATFORMS=cpu) to use virtual CPU devices"
            )

    @property
    def tasks(self) -> tuple[TaskName, ...]:
        """Every task, servers first, so that they are up when the workers connect."""
        counts = {
            "ps": self.ps,
            "worker": self.workers,
            "chief": int(self.single_client),
            "evaluator": int(self.evaluator),
        }
        return tuple(TaskName(job, index) for job, count in counts.items() for index in range(count))

    @property
    def servers(self) -> frozenset[TaskName]:
        """The tasks that run no code of the user's."""
        serving = {"ps", "worker"} if self.single_client else {"ps"}
        return frozenset(task for task in self.tasks if task.job in serving)

    @property
    def _importing_job(self) -> str:
        """The job whose tasks may import modules of the user's."""
        return "worker" if self.single_client else "ps"

    def command_of(self, task: TaskName) -> tuple[str, ...]:
        """Return the command of a task: the user's, or a server."""
        if task not in self.servers:
            return self.command
        allowed = self.allowed_imports if task.job == self._importing_job else ()
        return (*SERVE, *(word for module in allowed for word in ("--allow-import", module)))

    def import_environment(self, task: TaskName, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the variables by which a serving task finds the modules that it may import."""
        if self.import_directory is None or task.job != self._importing_job:
            return {}
        path = inherited.get("PYTHONPATH")
        return {"PYTHONPATH": os.pathsep.join([*([path] if path else []), self.import_directory])}

    def device_environment(self, task: TaskName, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that give a task its devices."""
        if task.job == "ps":
            # A server that found a GPU would take most of its memory away from the workers.
            return {"JAX_PLATFORMS": inherited.get("JAX_PLATFORMS", "cpu")}
        count = self.devices_per_worker
        if count is None or task.job != "worker":
            return {}
        if self.gpus:
            gpus = self.gpus[task.index * count : (task.index + 1) * count]
            return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        return virtual_device_environment(count, inherited)


def require_linux() -> None:
    """Raise LaunchError on other systems, where local jobs cannot run."""
    if sys.platform != "linux":
        raise LaunchError(
            f"a local cluster needs Linux, whose prctl and /proc make sure that no process outlives it; this is {sys.platform}"
        )


def user_command(script: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that runs a user's script: Python for `.py` files, the file itself otherwise."""
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
    """Return TF_CONFIG of one task. The evaluator is outside the cluster, as in TensorFlow."""
    cluster: dict[str, list[str]] = {}
    for other, address in addresses.items():
        if other.job != "evaluator":
            cluster.setdefault(other.job, []).append(address)
    return json.dumps({"cluster": cluster, "task": {"type": task.job, "index": task.index}})


def copying_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which the C library copies arrays of a megabyte or more past the processor's caches.

    Tasks mostly copy data for other tasks: gradients and parameters, into shared memory. By default glibc writes anything
    smaller than the caches into them, and so evicts the data that the task computes with next. Other C libraries, and
    processors other than x86, ignore the variable.

    Example:
        >>> copying_environment({})
        {'GLIBC_TUNABLES': 'glibc.cpu.x86_non_temporal_threshold=0x100000'}
        >>> copying_environment({"GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=0x400000"})
        {}
    """
    tunables = environ.get(_TUNABLES, "")
    if _COPY_PAST_CACHES in tunables:
        return {}
    return {_TUNABLES: ":".join(filter(None, (tunables, f"{_COPY_PAST_CACHES}={_COPY_PAST_CACHES_FROM:#x}")))}


@dataclass(frozen=True)
class JobRun:
    """One run of a job."""

    shape: JobShape
    identity: str  # names the run; every process of it carries this in its environment
    secret: str  # the secret with which its tasks authenticate to each other, unless the user has chosen one
    inherited: Mapping[str, str]  # the launcher's own environment
    addresses: Mapping[TaskName, str]  # the address of each task

    @property
    def running_job(self) -> RunningJob:
        """The job, as `stratagem status` needs to know it."""
        return RunningJob(
            shlex.join(self.shape.command),
            time.time(),
            tuple(address for task, address in self.addresses.items() if task.job != "evaluator"),
            None if environment.has_secret(self.inherited) else self.secret,
        )

    def task_environment(self, task: TaskName, generation: int) -> dict[str, str]:
        """Return the environment of one task: the launcher's own, and the variables of this task of this run."""
        return {
            **({} if environment.has_secret(self.inherited) else {environment.SECRET: self.secret}),
            environment.KERAS_BACKEND: "jax",  # strategies train with this one
            **self.inherited,
            **copying_environment(self.inherited),
            **self.shape.device_environment(task, self.inherited),
            **self.shape.import_environment(task, self.inherited),
            "PYTHONUNBUFFERED": "1",  # otherwise lines would arrive in blocks, long after they were printed
            "TF_CONFIG": tf_config(task, self.addresses),
            environment.RUN_ID: self.identity,
            environment.GENERATION: str(generation),
        }
