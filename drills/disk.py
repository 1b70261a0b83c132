"""Disks that fill up: a small disk that only some processes see, and a limit on the size of their files."""

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
    """Return the words before a command that give it, and its children, a small disk at a directory.

    The disk is in a mount namespace of its own, and disappears with the last process there.

    Raises:
        NotHere: This machine cannot make such a disk.
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
    """Return a path as a process sees it, which may have a disk there that other processes do not see."""
    return Path(f"/proc/{pid}/root{path}")


def fill(directory: Path, free: int) -> None:
    """Fill a disk up to this number of free bytes; call again to take what others have freed meanwhile."""
    found = os.statvfs(directory)
    missing = found.f_bavail * found.f_frsize - free
    with (directory / FILLER).open("ab", buffering=0) as file:
        block = bytes(1 << 16)
        while missing > 0:
            missing -= file.write(block[:missing]) or 0


def empty(directory: Path) -> None:
    """Release the space that `fill` took."""
    (directory / FILLER).unlink()


def limit(pids: Iterable[int], size: int | None) -> None:
    """Limit the size of the files that processes write; None lifts the limit."""
    for pid in pids:
        hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))
