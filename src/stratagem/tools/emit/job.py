"""A job that is started elsewhere: a cluster's shape, and the script that its workers run. All names are checked here."""

import math
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from stratagem.cluster.roles import PS
from stratagem.environment import GRACE
from stratagem.errors import LaunchError
from stratagem.tools.emit.shape import ClusterShape

DEFAULT_GRACE = 30.0
_NAME = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?")
_LONGEST_NAME = 40  # a host name has 63 characters, and "-evaluator-0" or "-worker-12345" comes after it
_LONGEST_GRACE = 65535  # what Slurm takes
_PORTS = range(1, 65536)


@dataclass(frozen=True)
class Job:
    """What to start, and how it may end.

    Attributes:
        shape: The cluster.
        script: The script's path, as its tasks will see it.
        arguments: What the script is given.
        name: Of the job: small letters, digits and dashes. Made from the script's by default.
        port: Where every task listens; left to the system where it runs by default.
        max_restarts: How often a task that failed is started again.
        grace: Seconds between SIGTERM and the end.

    Raises:
        LaunchError: Something that cannot be written down, or would not work.

    Example:
        >>> Job(ClusterShape(), "examples/My_Script.py", ("--steps", "100")).name
        'my-script'
    """

    shape: ClusterShape
    script: str
    arguments: tuple[str, ...] = ()
    name: str = ""
    port: int | None = None
    max_restarts: int = 0
    grace: float = DEFAULT_GRACE

    def __post_init__(self) -> None:
        _check_script(self.script)
        for argument in self.arguments:
            _check_argument(argument)
        object.__setattr__(self, "name", _checked_name(self.name) if self.name else _name_of(self.script))
        if self.port is not None and self.port not in _PORTS:
            raise LaunchError(f"--port {self.port}: ports are {_PORTS[0]} to {_PORTS[-1]}")
        if self.max_restarts < 0:
            raise LaunchError(f"--max-restarts {self.max_restarts}: give 0 or more")
        if not (math.isfinite(self.grace) and 0 <= self.grace <= _LONGEST_GRACE):
            raise LaunchError(f"--grace {self.grace:g}: give 0 to {_LONGEST_GRACE} seconds")

    @property
    def grace_seconds(self) -> int:
        """The grace in whole seconds, never less than was asked for."""
        return math.ceil(self.grace)

    @property
    def keeps_snapshots(self) -> bool:
        """Whether servers may be started again, and so need something to come back to."""
        return self.shape.ps > 0 and self.max_restarts > 0

    def grace_environment(self, job: str) -> dict[str, str]:
        """What tells a task of a job how long it may go on after SIGTERM: servers, which workers need until they have saved."""
        return {GRACE: str(self.grace_seconds)} if job == PS and self.grace_seconds else {}

    def command(self, python: str = "python") -> tuple[str, ...]:
        """What runs the script: Python for `.py` files, the file itself otherwise."""
        if self.is_python and not self.script.startswith("-"):
            return (python, self.script, *self.arguments)
        # A path with a slash is no option of Python's, and not looked for on PATH.
        path = self.script if self.script.startswith(("/", "./", "../")) else f"./{self.script}"
        return (*((python,) if self.is_python else ()), path, *self.arguments)

    @property
    def is_python(self) -> bool:
        """Whether the script is run by Python, rather than by itself."""
        return self.script.endswith(".py")


def _check_script(script: str) -> None:
    if not script or not script.isprintable():
        raise LaunchError(
            f"{script!r} is no path of a script that could be written down: it is empty, or has a line break or another "
            "character that cannot be shown; rename the file"
        )


def _check_argument(argument: str) -> None:
    if "\0" in argument or not _is_text(argument):
        raise LaunchError(f"the script's argument {argument!r} is not text; give it as UTF-8, without NUL")


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise LaunchError(
            f"--name {name!r}: a name has at most {_LONGEST_NAME} small letters, digits and dashes, begins with a letter "
            "and does not end with a dash, as in 'train-digits'"
        )
    return name


def _name_of(script: str) -> str:
    stem = PurePosixPath(script).stem.lower()
    name = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:_LONGEST_NAME].rstrip("-")
    if not _NAME.fullmatch(name):
        raise LaunchError(f"no name for the job can be made from {script!r}: give one, as in --name train")
    return name
