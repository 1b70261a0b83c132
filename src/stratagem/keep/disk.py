"""Files that appear whole or not at all; errors of the operating system become `KeepError` here."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from secrets import token_hex

from stratagem.errors import KeepError
from stratagem.keep.naming import PARTIAL_SUFFIX

_NEXT = {
    errno.ENOENT: "it was removed meanwhile, lies on another host, or is where no directory can be: choose another",
    errno.EEXIST: "a file has the name of a directory: give a directory, or move the file away",
    errno.ENOTDIR: "a file has the name of a directory: give a directory, or move the file away",
    errno.ENOSPC: "free some space or choose another directory",
    errno.EDQUOT: "free some space or choose another directory",
    errno.EFBIG: "raise the limit on the size of files, or cut the state into more shards",
    errno.EACCES: "give this user access to it, or choose another directory",
    errno.EPERM: "give this user access to it, or choose another directory",
    errno.EROFS: "choose a directory that can be written to",
}


@contextmanager
def explained(path: Path, verb: str) -> Iterator[None]:
    """Turns an `OSError` inside into a `KeepError` that names the path and what could not be done to it."""
    try:
        yield
    except OSError as error:
        then = _NEXT.get(error.errno or 0, "check the disk and try again")
        raise KeepError(f"{path} cannot be {verb}: {error.strerror or error}; {then}") from error


@contextmanager
def new_file(path: Path, *, durable: bool) -> Iterator[FileIO]:
    """A file to write, which gets its name only when all of it is written.

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
    """Write all of it: an unbuffered file may take less at a time."""
    while data:
        data = data[file.write(data) :]


def fill(file: FileIO, target: memoryview) -> int:
    """Read until `target` is full or the file ends; how many bytes came."""
    done = 0
    while done < len(target) and (count := file.readinto(target[done:])):
        done += count
    return done


def make_directory(path: Path, *, durable: bool) -> None:
    """Make a directory and those above it, where they are missing."""
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
