"""The directory in which a run's parameter servers keep their cuts: made for the run, gone when it has ended well."""

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from stratagem import environment


class SnapshotDirectory:
    """Where the cuts of one run are.

    Attributes:
        is_wanted: Whether they stay when the run is over.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_wanted = True

    def leave(self) -> None:
        """Remove it, or say where it is if there is something in it that may still be wanted."""
        if not self.is_wanted or not any(self._path.iterdir()):
            shutil.rmtree(self._path, ignore_errors=True)
        else:
            sys.stderr.write(
                f"stratagem: the parameter servers' last snapshots are in {self._path}; to go on from them, start the job "
                f"again with {environment.SNAPSHOT_DIR}={self._path}\n"
            )


@contextmanager
def snapshot_directory(
    servers: int, inherited: Mapping[str, str]
) -> Iterator[tuple[dict[str, str], SnapshotDirectory | None]]:
    """The environment of the tasks with a directory for cuts in it, if there are servers and the user named none."""
    if not servers or environment.snapshot_dir(inherited) is not None:
        yield dict(inherited), None
        return
    made = SnapshotDirectory(path := Path(tempfile.mkdtemp(prefix="stratagem-snapshots-")))
    try:
        yield {**inherited, environment.SNAPSHOT_DIR: str(path)}, made
    finally:
        made.leave()
