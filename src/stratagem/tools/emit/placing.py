"""Where a container finds what it needs, and how text is kept from being taken for a variable there."""

import re

from stratagem.cluster import Address
from stratagem.errors import LaunchError
from stratagem.tools.emit.job import Job

DEFAULT_IMAGE = "stratagem:latest"
DEFAULT_PORT = 2222
CODE_DIRECTORY = "/job"
SNAPSHOT_DIRECTORY = "/snapshots"
SERVE = ("stratagem", "serve")
SECRET_PROGRAM = "import secrets; print(secrets.token_hex(32))"
MAKE_SECRET = f"python3 -c '{SECRET_PROGRAM}'"
_IMAGE = re.compile(r"[\w][\w./:@-]*", re.ASCII)


def checked_image(image: str) -> str:
    """The image's name.

    Raises:
        LaunchError: It is none.
    """
    if not _IMAGE.fullmatch(image):
        raise LaunchError(
            f"--image {image!r} is no name of an image; give one as in 'registry.example/train:1.0'"
        )
    return image


def port(job: Job) -> int:
    """Where every task of a job listens, since each has a host of its own."""
    return DEFAULT_PORT if job.port is None else job.port


def address(host: str, job: Job) -> str:
    """The address of a task."""
    return str(Address(host, port(job)))


def literal(text: str) -> str:
    """Text in which neither Compose nor Kubernetes sees a variable to replace: both read `$$` as one dollar."""
    return text.replace("$", "$$")


def command(job: Job, serves: bool) -> list[str]:
    """What a container runs."""
    return [literal(word) for word in (SERVE if serves else job.command())]
