"""The memory of this machine."""

import os
from contextlib import suppress
from pathlib import Path


def physical_memory() -> int:
    """Return the bytes of physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_memory() -> int:
    """Return the bytes of memory of this machine, or of this process's container if that is less."""
    physical = physical_memory()
    with suppress(OSError, ValueError):  # no control groups here, or the word "max"
        return min(physical, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return physical
