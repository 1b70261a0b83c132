"""A job to start elsewhere: the shape of its cluster, its script, and what its tasks are given. All names are checked here."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from stratagem.cluster import Address, ClusterSpec
from stratagem.cluster.roles import CHIEF, EVALUATOR, PS, WORKER
from stratagem.devices import virtual_device_environment
from stratagem.environment import GRACE, KERAS_BACKEND
from stratagem.errors import LaunchError

DEFAULT_GRACE = 30.0
DEFAULT_IMAGE = "stratagem:latest"
DEFAULT_PORT = 2222
CODE_DIRECTORY = "/job"
SNAPSHOT_DIRECTORY = "/snapshots"
SECRET_PROGRAM = "import secrets; print(secrets.token_hex(32))"
MAKE_SECRET = f"python3 -c '{SECRET_PROGRAM}'"
_SERVE = ("stratagem", "serve")
_NAME = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?")
_IMAGE = re.compile(r"[\w][\w./:@-]*", re.ASCII)
_LONGEST_NAME = 40  # a host name has 63 characters, and "-evaluator-0" or "-worker-12345" comes after it
_LONGEST_GRACE = 65535  # Slurm's limit
_PORTS = range(1, 65536)


@dataclass(frozen=True)
class ClusterShape:
    """The number of tasks of each job, and their devices.

    Raises:
        LaunchError: A count is out of range.

    Example:
        >>> ClusterShape(ps=1, workers=2).tasks
        (('ps', 0), ('worker', 0), ('worker', 1))
    """

    ps: int = 1  # number of parameter servers
    workers: int = 3  # number of workers; worker 0 is the chief, unless there is a single client
    evaluator: bool = False  # whether to add an evaluator beside the cluster
    single_client: bool = False  # whether the script runs once, as the chief, and the workers only serve
    devices_per_worker: int | None = None  # virtual CPU devices of each worker; none by default
    gpus_per_worker: int | None = None  # GPUs to request for each worker

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise LaunchError(f"--workers {self.workers}: a job needs at least 1 worker")
        if self.ps < 0:
            raise LaunchError(f"--ps {self.ps}: give 0 or more parameter servers")
        if self.devices_per_worker is not None and self.devices_per_worker < 1:
            raise LaunchError(
                f"--devices-per-worker {self.devices_per_worker}: a worker needs at least 1 device"
            )
        if self.gpus_per_worker is not None and self.gpus_per_worker < 1:
            raise LaunchError(
                f"--gpus-per-worker {self.gpus_per_worker}: give at least 1, or leave it out for workers on CPUs"
            )
        if self.devices_per_worker and self.gpus_per_worker:
            raise LaunchError(
                "--devices-per-worker makes virtual devices out of CPUs and --gpus-per-worker asks for GPUs: give one of them"
            )

    @property
    def counts(self) -> dict[str, int]:
        """The number of tasks of each job that has any."""
        counts = {
            PS: self.ps,
            WORKER: self.workers,
            CHIEF: int(self.single_client),
            EVALUATOR: int(self.evaluator),
        }
        return {job: count for job, count in counts.items() if count}

    @property
    def tasks(self) -> tuple[tuple[str, int], ...]:
        """Job and index of every task, servers first."""
        return tuple((job, index) for job, count in self.counts.items() for index in range(count))

    def serves(self, job: str) -> bool:
        """Return whether the tasks of a job run a server instead of the user's script."""
        return job == PS or (job == WORKER and self.single_client)

    def cluster(self, address: Callable[[str, int], str]) -> ClusterSpec:
        """Return the cluster with each task at `address(job, index)`. The evaluator is outside, as in TensorFlow."""
        return ClusterSpec(
            {
                job: [address(job, index) for index in range(count)]
                for job, count in self.counts.items()
                if job != EVALUATOR
            }
        )

    def environment(self, job: str, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables that all tasks of a job share, without TF_CONFIG. `inherited` variables take precedence."""
        inherited = inherited or {}
        variables = {"PYTHONUNBUFFERED": "1", KERAS_BACKEND: inherited.get(KERAS_BACKEND, "jax")}
        if job == PS:
            # A server that found a GPU would take most of its memory away from the workers.
            variables["JAX_PLATFORMS"] = inherited.get("JAX_PLATFORMS", "cpu")
        elif job == WORKER and self.devices_per_worker is not None:
            # The machine that it will run on is not known: do not rely on its cores.
            variables |= virtual_device_environment(self.devices_per_worker, inherited, cores=0)
        return variables

    def gpus(self, job: str) -> int:
        """Return the number of GPUs for each task of a job."""
        return self.gpus_per_worker or 0 if job == WORKER else 0

    def __str__(self) -> str:
        words = {PS: "parameter server", WORKER: "worker", CHIEF: "chief", EVALUATOR: "evaluator"}
        phrases = [f"{count} {words[job]}{'s' if count > 1 else ''}" for job, count in self.counts.items()]
        return f"{', '.join(phrases[:-1])} and {phrases[-1]}" if len(phrases) > 1 else phrases[0]


@dataclass(frozen=True)
class Job:
    """A script to run on a cluster.

    Raises:
        LaunchError: A value cannot be written down, or would not work.

    Example:
        >>> Job(ClusterShape(), "examples/My_Script.py", ("--steps", "100")).name
        'my-script'
    """

    shape: ClusterShape
    script: str  # the script's path, as its tasks will see it
    arguments: tuple[str, ...] = ()
    # The job's name, of lower-case letters, digits and dashes; made from the script's name by default.
    name: str = ""
    port: int | None = None  # the port of every task; each kind of file has its own default
    max_restarts: int = 0  # how often a failed task is restarted
    grace: float = DEFAULT_GRACE  # seconds between SIGTERM and the end

    def __post_init__(self) -> None:
        _check_script(self.script)
        for argument in self.arguments:
            _check_argument(argument)
        if self.name:
            _check_name(self.name)
        else:
            object.__setattr__(self, "name", _name_of(self.script))
        if self.port is not None and self.port not in _PORTS:
            raise LaunchError(f"--port {self.port}: ports are {_PORTS[0]} to {_PORTS[-1]}")
        if self.max_restarts < 0:
            raise LaunchError(f"--max-restarts {self.max_restarts}: give 0 or more")
        if not (math.isfinite(self.grace) and 0 <= self.grace <= _LONGEST_GRACE):
            raise LaunchError(f"--grace {self.grace:g}: give 0 to {_LONGEST_GRACE} seconds")

    @property
    def grace_seconds(self) -> int:
        """The grace in whole seconds, rounded up."""
        return math.ceil(self.grace)

    @property
    def keeps_snapshots(self) -> bool:
        """Whether servers may be restarted, and so need snapshots to recover from."""
        return self.shape.ps > 0 and self.max_restarts > 0

    def grace_environment(self, job: str) -> dict[str, str]:
        """Return the variables by which servers stay up after SIGTERM until the workers have saved."""
        return {GRACE: str(self.grace_seconds)} if job == PS and self.grace_seconds else {}

    @property
    def is_python(self) -> bool:
        """Whether Python runs the script, rather than the system."""
        return self.script.endswith(".py")

    def command(self, python: str = "python") -> tuple[str, ...]:
        """Return the command that runs the script: Python for `.py` files, the file itself otherwise."""
        if self.is_python and not self.script.startswith("-"):
            return (python, self.script, *self.arguments)
        # A path with a slash is neither taken for an option of Python nor searched for on PATH.
        path = self.script if self.script.startswith(("/", "./", "../")) else f"./{self.script}"
        return (*((python,) if self.is_python else ()), path, *self.arguments)

    # In containers, where each task has a host of its own.

    @property
    def container_port(self) -> int:
        """The port of every task."""
        return DEFAULT_PORT if self.port is None else self.port

    def container_address(self, host: str) -> str:
        """Return the address of the task on a host."""
        return str(Address(host, self.container_port))

    def container_command(self, serves: bool) -> list[str]:
        """Return the command of a container that serves, or runs the script."""
        return [escape_dollars(word) for word in (_SERVE if serves else self.command())]


def tf_config(cluster: ClusterSpec, job: str, index: int | str) -> str:
    """Return TF_CONFIG of one task, as JSON.

    Args:
        cluster: All tasks but the evaluator.
        job: The task's job.
        index: The task's index, or a placeholder that becomes a number before the JSON is read.

    Example:
        >>> tf_config(ClusterSpec({"worker": ["a:1", "b:1"]}), "worker", 1)
        '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
    """
    jobs = json.dumps(cluster.as_dict())
    return f'{{"cluster": {jobs}, "task": {{"type": {json.dumps(job)}, "index": {index}}}}}'


def escape_dollars(text: str) -> str:
    """Return text in which Compose and Kubernetes see no variable to replace: both read `$$` as one dollar."""
    return text.replace("$", "$$")


def check_image(image: str) -> None:
    """Raise LaunchError unless `image` is the name of an image."""
    if not _IMAGE.fullmatch(image):
        raise LaunchError(
            f"--image {image!r} is not the name of an image; give one such as 'registry.example/train:1.0'"
        )


def _check_script(script: str) -> None:
    if not script or not script.isprintable():
        raise LaunchError(
            f"the script's path {script!r} cannot be written into a file: it is empty, or has a line break or another "
            "character that cannot be shown; rename the script"
        )


def _check_argument(argument: str) -> None:
    try:
        argument.encode()
    except UnicodeEncodeError:
        is_text = False
    else:
        is_text = "\0" not in argument
    if not is_text:
        raise LaunchError(f"the script's argument {argument!r} is not text; give it as UTF-8, without NUL")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise LaunchError(
            f"--name {name!r}: a name has at most {_LONGEST_NAME} lower-case letters, digits and dashes, begins with a "
            "letter and does not end with a dash, such as 'train-digits'"
        )


def _name_of(script: str) -> str:
    stem = PurePosixPath(script).stem.lower()
    name = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:_LONGEST_NAME].rstrip("-")
    if not _NAME.fullmatch(name):
        raise LaunchError(f"cannot make a job name from {script!r}: give one, such as --name train")
    return name
