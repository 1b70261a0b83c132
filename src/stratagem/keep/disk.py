"""Files and directories of snapshots: their names, and files that appear whole or not at all.

Errors of the operating system become `KeepError` here.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from secrets import token_hex

from stratagem.errors import KeepError

MANIFEST = "manifest.json"
_SHARD_SUFFIX = ".safetensors"
PARTIAL_SUFFIX = ".partial"
"""Ends the name of a file that is still being written; one that stays was left behind by a killed process."""
LAST_STEP = 10**12 - 1
_STEP = re.compile(r"step-([0-9]{12})")
# A name in a file that is read comes from outside: it must not lead out of the snapshot's directory.
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]{0,127}")

_ADVICE = {
    errno.ENOENT: "it was removed meanwhile, lies on another host, or is where no directory can be: choose another",
    errno.EEXIST: "a file has the name of a directory: give a directory, or move the file away",
    errno.ENOTDIR: "a file has the name of a directory: give a directory, or move the file away",
    errno.ENOSPC: "free some space or choose another directory",
    errno.EDQUOT: "free some space or choose another directory",
    errno.EFBIG: "raise the limit on the size of files, or split the state into more shards",
    errno.EACCES: "give this user access to it, or choose another directory",
    errno.EPERM: "give this user access to it, or choose another directory",
    errno.EROFS: "choose a directory that can be written to",
}


@contextmanager
def explain_errors(path: Path, verb: str) -> Iterator[None]:
    """Turn an `OSError` inside into a `KeepError` that names the path and what could not be done to it."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "check the disk and try again")
        raise KeepError(f"{path} cannot be {verb}: {error.strerror or error}; {advice}") from error


@contextmanager
def new_file(path: Path, *, durable: bool) -> Iterator[FileIO]:
    """Yield a file to write, which gets its name only when all of it is written.

    Args:
        path: The final name; a file that has it already is replaced.
        durable: Whether to wait until the file would survive a loss of power, not only of the process.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}-{token_hex(4)}{PARTIAL_SUFFIX}")
    try:
        with partial.open("xb", buffering=0) as file:
            yield file
            if durable:
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def write_all(file: FileIO, data: memoryview) -> None:
    """Write all of the data: an unbuffered file may take less at a time."""
    while data:
        data = data[file.write(data) :]


def fill(file: FileIO, target: memoryview) -> int:
    """Read until `target` is full or the file ends. Return how many bytes came."""
    done = 0
    while done < len(target) and (count := file.readinto(target[done:])):
        done += count
    return done


def make_directory(path: Path, *, durable: bool) -> None:
    """Make a directory and its parents, where they are missing."""
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent, durable=durable)
    path.mkdir(exist_ok=True)
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory would survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------- names


def step_directory(step: int) -> str:
    """Return the name of the directory of the snapshot at a step.

    Example:
        >>> step_directory(123)
        'step-000000000123'
    """
    return f"step-{step:012d}"


def step_of(directory: str) -> int | None:
    """Return the step in a directory's name; `None` if it is not a snapshot's."""
    match = _STEP.fullmatch(directory)
    return int(match[1]) if match else None


def shard_file_name(shard: str) -> str:
    """Return the name of the file that holds a shard.

    Raises:
        KeepError: `shard` cannot be part of a file name.
    """
    if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
        raise KeepError(
            f"a shard cannot be called {shard!r:.140}; names have up to 128 letters, digits and the characters "
            "_ . = + - and begin with a letter, a digit or _, such as 'ps-0'"
        )
    return shard + _SHARD_SUFFIX


def shard_of(file: str) -> str:
    """Return the name of the shard in a file.

    Raises:
        KeepError: A shard's file cannot have this name.
    """
    shard = file.removesuffix(_SHARD_SUFFIX)
    if shard == file or not _SHARD.fullmatch(shard):
        raise KeepError(
            f"{file!r:.160} is not the name of a shard's file, which is a plain name without a directory that "
            f"ends in {_SHARD_SUFFIX}, such as 'ps-0{_SHARD_SUFFIX}'"
        )
    return shard


def is_snapshot_file(file: str) -> bool:
    """Return whether a file in a snapshot's directory is one that this layer writes, and so may remove."""
    return file == MANIFEST or file.endswith((_SHARD_SUFFIX, PARTIAL_SUFFIX))
