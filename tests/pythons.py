"""Print one interpreter of every Python from 3.11 on that is on the path or that pyenv keeps, the oldest first."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

OLDEST = (3, 11)
ASKED = "import ensurepip, sys; print(*sys.version_info[:2], sys.executable)"


def interpreters() -> dict[tuple[int, int], str]:
    """The first interpreter that is found of each version, if it can make environments."""
    found: dict[tuple[int, int], str] = {}
    for path in _candidates():
        asked = subprocess.run([path, "-c", ASKED], capture_output=True, text=True, timeout=30, check=False)
        if asked.returncode == 0:
            major, minor, executable = asked.stdout.strip().split(" ", 2)
            found.setdefault((int(major), int(minor)), executable)
    return {version: found[version] for version in sorted(found) if version >= OLDEST}


def _candidates() -> Iterator[Path]:
    for folder in os.environ["PATH"].split(os.pathsep):
        yield from sorted(Path(folder).glob("python3.[0-9][0-9]"))
    yield from sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3.[0-9][0-9]"))


if __name__ == "__main__":
    for each in interpreters().values():
        print(each)
