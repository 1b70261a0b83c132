"""The jobs that this user's launchers run on this machine: noted where nobody else can read, for `stratagem status`.

A note is a file in a directory that belongs to this user and that nobody else may enter. Its launcher holds a lock on it for
as long as it lives, however it ends: a note that nobody holds is of a launcher that was killed, and is removed.
"""

import contextlib
import fcntl
import json
import logging
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from stratagem import environment
from stratagem.cluster import Address
from stratagem.errors import ClusterError, LaunchError

_log = logging.getLogger("stratagem")
_NAME = "stratagem"
_ATTEMPTS = 10
_LONGEST = 1 << 20
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_MAKE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_READ_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_LOOPBACK = {"localhost": "127.0.0.1"}


@dataclass(frozen=True)
class RunningJob:
    """A job as its launcher has noted it.

    Attributes:
        command: What it runs.
        started: When, in seconds since 1970.
        addresses: Where its tasks listen, the one to ask first at the front.
        secret: Its secret; `None` if the user has chosen one, who then knows it.
    """

    command: str
    started: float
    addresses: tuple[str, ...]
    secret: str | None = field(repr=False)

    @property
    def target(self) -> str:
        """The server to ask."""
        return f"sg://{self.addresses[0]}"

    def has(self, target: str) -> bool:
        """Whether a server is one of its tasks."""
        try:
            asked = Address.parse(target.removeprefix("sg://"))
        except ClusterError:
            return False
        return str(Address(_LOOPBACK.get(asked.host, asked.host), asked.port)) in self.addresses

    @classmethod
    def read(cls, text: bytes) -> "RunningJob | None":
        """The job of a note; `None` for one that is not written yet."""
        try:
            values = json.loads(text)
            return cls(
                str(values["command"]),
                float(values["started"]),
                tuple(map(str, values["addresses"])),
                None if values["secret"] is None else str(values["secret"]),
            )
        except (ValueError, KeyError, TypeError):
            return None


def note(job: RunningJob, name: str) -> Callable[[], None]:
    """Note a job that this process runs, and remove what killed launchers have left.

    Args:
        job: The job.
        name: A name that no other job has.

    Returns:
        Call it when the job is over.

    Raises:
        LaunchError: There is no private directory to note it in.
    """
    path = _directories()[0]
    for _ in range(_ATTEMPTS):
        with (
            contextlib.suppress(FileNotFoundError),
            _entered(path, make=True) as directory,
        ):  # another has removed it
            _jobs_in(directory)  # removes what is left over
            file = os.open(name, _MAKE_FILE, 0o600, dir_fd=directory)
            try:
                os.write(file, json.dumps(asdict(job)).encode())
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                os.close(file)
                raise
            if _is_there(name, file, directory):
                return lambda: _forget(path, name, file)
            os.close(file)  # somebody found it before it was locked, and took it for one that is left over
    raise LaunchError(f"a note of this job in {path} does not stay there")


def running_jobs() -> list[RunningJob]:
    """The jobs of this user that run now, the oldest first; what killed launchers have left is removed."""
    found = []
    for path in _directories():
        try:
            with _entered(path, make=False) as directory:
                found += _jobs_in(directory)
        except FileNotFoundError:
            continue
        except LaunchError as error:
            _log.warning("%s: it is passed over", error)
    return sorted(found, key=lambda job: job.started)


def find_job(target: str | None, jobs: Sequence[RunningJob]) -> RunningJob | None:
    """The job that a user means.

    Args:
        target: A server of it; `None` for the only job there is.
        jobs: All that run.

    Returns:
        The job; `None` if the server is of none of them.

    Raises:
        LaunchError: No target is given, and there is not just one job.
    """
    if target is not None:
        return next((job for job in jobs if job.has(target)), None)
    if not jobs:
        raise LaunchError(
            "no job of yours that `stratagem run` has started is running on this machine; give the TARGET of a server, as in "
            "sg://host:port"
        )
    if len(jobs) > 1:
        lines = [f"  {job.target}  {job.command}" for job in jobs]
        raise LaunchError(
            "\n".join([f"{len(jobs)} jobs of yours are running; give one of them as TARGET:", *lines])
        )
    return jobs[0]


def _directories() -> list[Path]:
    """Where notes may be: for each session's own directory, if there is one, else for temporary files."""
    user = os.geteuid()
    session = environment.runtime_dir()
    temporary = Path(tempfile.gettempdir()) / f"{_NAME}-{user}"
    with contextlib.suppress(OSError):
        if session is not None and Path(session).stat().st_uid == user:  # after `su` it is another user's
            return [Path(session) / _NAME, temporary]
    return [temporary]


@contextmanager
def _entered(path: Path, *, make: bool) -> Iterator[int]:
    """A descriptor of a directory that is this user's alone: whatever becomes of its name, this stays the same."""
    if make:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    try:
        directory = os.open(path, _OPEN_DIRECTORY)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LaunchError(f"{path} is no directory of your own ({error.strerror}): remove it") from error
    try:
        status = os.fstat(directory)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise LaunchError(
                f"{path} is not private: it belongs to user {status.st_uid} and has mode "
                f"{stat.S_IMODE(status.st_mode):o}, where {os.geteuid()} and 700 are wanted; remove it"
            )
        yield directory
    finally:
        os.close(directory)


def _jobs_in(directory: int) -> list[RunningJob]:
    names = os.listdir(directory)  # of what was checked, not of what now has its name
    return [job for name in names if (job := _looked_at(name, directory)) is not None]


def _looked_at(name: str, directory: int) -> RunningJob | None:
    """The job that a note tells of; one that nobody holds is removed."""
    try:
        file = os.open(name, _READ_FILE, dir_fd=directory)
    except OSError:  # it was removed meanwhile, or is a link
        return None
    try:
        status = os.fstat(file)
        is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        if not is_own:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return RunningJob.read(os.read(file, _LONGEST))
        if _is_there(name, file, directory):
            os.unlink(name, dir_fd=directory)
        return None
    except OSError:
        return None
    finally:
        os.close(file)


def _is_there(name: str, file: int, directory: int) -> bool:
    """Whether an open file has still that name."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(file))


def _forget(path: Path, name: str, file: int) -> None:
    try:
        with contextlib.suppress(OSError, LaunchError), _entered(path, make=False) as directory:
            if _is_there(name, file, directory):
                os.unlink(name, dir_fd=directory)
        with contextlib.suppress(OSError):
            path.rmdir()  # unless others have jobs noted there
    finally:
        os.close(file)
