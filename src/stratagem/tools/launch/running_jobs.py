"""The register of the jobs that this user's launchers run on this machine, for `stratagem status`; private to the user.

An entry is a file in a directory that belongs to this user and that nobody else may enter. Its launcher holds a lock on it
until it ends, in whatever way: an entry that is not locked is of a launcher that was killed, and is removed.
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
    """A running job, as its launcher has registered it."""

    command: str
    started: float  # its start, in seconds since 1970
    addresses: tuple[str, ...]  # the addresses of its tasks, the one to ask first at the front
    secret: str | None = field(repr=False)  # its secret; `None` if the user has chosen one, and so knows it

    @property
    def target(self) -> str:
        """The server to ask for its status."""
        return f"sg://{self.addresses[0]}"

    def has(self, target: str) -> bool:
        """Return whether a server is one of its tasks."""
        try:
            address = Address.parse(target.removeprefix("sg://"))
        except ClusterError:
            return False
        return str(Address(_LOOPBACK.get(address.host, address.host), address.port)) in self.addresses

    @classmethod
    def read(cls, text: bytes) -> "RunningJob | None":
        """Return the job of an entry; `None` if it is not written yet."""
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


def register_job(job: RunningJob, name: str) -> Callable[[], None]:
    """Register a job that this process runs, under a unique name, and remove the entries of killed launchers.

    Return a call that removes the job from the register. Raise LaunchError if there is no private directory for the register.
    """
    path = _directories()[0]
    for _ in range(_ATTEMPTS):
        with (
            contextlib.suppress(FileNotFoundError),
            _private_directory(path, make=True) as directory,
        ):  # another launcher has removed the directory
            _jobs_in(directory)  # removes the entries of killed launchers
            file = os.open(name, _MAKE_FILE, 0o600, dir_fd=directory)
            try:
                os.write(file, json.dumps(asdict(job)).encode())
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                os.close(file)
                raise
            if _has_name(file, name, directory):
                return lambda: _unregister(path, name, file)
            os.close(file)  # another process saw the entry before it was locked, and removed it
    raise LaunchError(f"cannot register this job: its file in {path} is removed each time")


def running_jobs() -> list[RunningJob]:
    """Return this user's running jobs, the oldest first, and remove the entries of killed launchers."""
    jobs = []
    for path in _directories():
        try:
            with _private_directory(path, make=False) as directory:
                jobs += _jobs_in(directory)
        except FileNotFoundError:
            continue
        except LaunchError as error:
            _log.warning("%s; ignoring it", error)
    return sorted(jobs, key=lambda job: job.started)


def find_job(target: str | None, jobs: Sequence[RunningJob]) -> RunningJob | None:
    """Return the job that a user means, `None` if the target belongs to none of the jobs.

    Without a target that is the only job; raise LaunchError if there is none or more than one.
    """
    if target is not None:
        return next((job for job in jobs if job.has(target)), None)
    if not jobs:
        raise LaunchError(
            "no job of yours, started by `stratagem run`, is running on this machine; give the TARGET of a server, such as "
            "sg://host:port"
        )
    if len(jobs) > 1:
        lines = [f"  {job.target}  {job.command}" for job in jobs]
        raise LaunchError(
            "\n".join([f"{len(jobs)} jobs of yours are running; give one of them as TARGET:", *lines])
        )
    return jobs[0]


def _directories() -> list[Path]:
    """Return the directories of registers: the session's, if it has one, then that for temporary files."""
    user = os.geteuid()
    session = environment.runtime_dir()
    temporary = Path(tempfile.gettempdir()) / f"{_NAME}-{user}"
    with contextlib.suppress(OSError):
        if (
            session is not None and Path(session).stat().st_uid == user
        ):  # after `su` it belongs to another user
            return [Path(session) / _NAME, temporary]
    return [temporary]


@contextmanager
def _private_directory(path: Path, *, make: bool) -> Iterator[int]:
    """Open a directory that is private to this user. The descriptor stays valid whatever happens to the path."""
    if make:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    try:
        directory = os.open(path, _OPEN_DIRECTORY)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LaunchError(f"{path} is not a directory of your own ({error.strerror}): remove it") from error
    try:
        status = os.fstat(directory)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise LaunchError(
                f"{path} is not private: it belongs to user {status.st_uid} and has mode "
                f"{stat.S_IMODE(status.st_mode):o}, instead of {os.geteuid()} and 700; remove it"
            )
        yield directory
    finally:
        os.close(directory)


def _jobs_in(directory: int) -> list[RunningJob]:
    names = os.listdir(directory)  # by descriptor: the path may name another directory by now
    return [job for name in names if (job := _read_entry(name, directory)) is not None]


def _read_entry(name: str, directory: int) -> RunningJob | None:
    """Return the job of an entry. Remove the entry, and return `None`, if its launcher was killed."""
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
        if _has_name(file, name, directory):
            os.unlink(name, dir_fd=directory)
        return None
    except OSError:
        return None
    finally:
        os.close(file)


def _has_name(file: int, name: str, directory: int) -> bool:
    """Return whether an open file still has this name."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(status, os.fstat(file))


def _unregister(path: Path, name: str, file: int) -> None:
    try:
        with contextlib.suppress(OSError, LaunchError), _private_directory(path, make=False) as directory:
            if _has_name(file, name, directory):
                os.unlink(name, dir_fd=directory)
        with contextlib.suppress(OSError):
            path.rmdir()  # fails while it has other entries
    finally:
        os.close(file)
