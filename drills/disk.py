"""Disks that get full: a small one that only some processes see, and a limit on the size of their files."""

import os
import resource
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from drills.hosts import NotHere

FILLER = "filler"
_MOUNTED = 'mount -t tmpfs -o size="$1" drill "$2" && shift 2 && exec "$@"'


def small_disk(directory: Path, size: int) -> tuple[str, ...]:
    """What to put before a command so that it, and what it starts, has a small disk at a directory.

    It lies in a mount namespace of its own, and goes with the last process in there.

    Raises:
        NotHere: Such a disk cannot be made here.
    """
    if shutil.which("unshare") is None:
        raise NotHere("small disks are made with util-linux, and there is no 'unshare' here")
    before = ("unshare", "--mount", "sh", "-c", _MOUNTED, "sh", str(size), str(directory))
    try:
        subprocess.run([*before, "true"], check=True, capture_output=True, text=True, timeout=30)
    except subprocess.CalledProcessError as error:
        raise NotHere(f"small disks cannot be mounted here: {error.stderr.strip()}") from error
    return before


def seen_by(pid: int, path: Path) -> Path:
    """A path as a process sees it, which may have a disk there that others have not."""
    return Path(f"/proc/{pid}/root{path}")


def fill(directory: Path, free: int) -> None:
    """Take what a disk has, but for so many bytes; again for what others have given back meanwhile."""
    found = os.statvfs(directory)
    missing = found.f_bavail * found.f_frsize - free
    with (directory / FILLER).open("ab", buffering=0) as file:
        block = bytes(1 << 16)
        while missing > 0:
            missing -= file.write(block[:missing]) or 0


def empty(directory: Path) -> None:
    """Give back what `fill` took."""
    (directory / FILLER).unlink()


def limit(pids: Iterable[int], size: int | None) -> None:
    """Let processes make no file larger than this; None lifts the limit."""
    for pid in pids:
        hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))
