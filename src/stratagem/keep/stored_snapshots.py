"""The snapshots of a run, in one directory: finishing, finding, reading and removing them.

A snapshot is a directory `step-000000000123` with shards (`ps-0.safetensors`, …), each written by one process, and a
`manifest.json`, written last: without it the snapshot is unfinished, and never read. Checkpoints are stored alike.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from os import PathLike
from pathlib import Path

from stratagem.errors import KeepError
from stratagem.keep.checked_json import excerpt
from stratagem.keep.disk import (
    MANIFEST,
    PARTIAL_SUFFIX,
    explain_errors,
    is_snapshot_file,
    make_directory,
    new_file,
    step_directory,
    step_of,
    sync_directory,
    write_all,
)
from stratagem.keep.manifest import Manifest, TensorEntry, TensorPiece, check_step
from stratagem.keep.shard_files import allocate, open_shard, verify_shard
from stratagem.runtime.wire.arrays import Array

_log = logging.getLogger("stratagem")


class StoredSnapshot:
    """A finished snapshot on disk, from `Snapshots.open`.

    A shard is checked against its digest once, before the first tensor is read from it.

    Attributes:
        directory: Where its files are.
        manifest: Its contents.
    """

    def __init__(self, directory: Path, manifest: Manifest, *, check_digests: bool = True) -> None:
        self.directory = directory
        self.manifest = manifest
        self._unchecked = {record.shard for record in manifest.shards} if check_digests else set()

    @property
    def step(self) -> int:
        """The global step of this state."""
        return self.manifest.step

    @property
    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self.manifest.tensors)

    def read(self, name: str) -> Array:
        """Return a whole tensor: a new array, writable and aligned for XLA.

        Raises:
            KeepError: There is no tensor of that name, or a shard that it needs is missing or damaged.
        """
        entry = self._entry(name)
        return self._read(entry, 0, entry.stored.rows)

    def read_rows(self, name: str, start: int, stop: int) -> Array:
        """Return rows `start` to `stop` of a tensor; only the shards that have some of them are read.

        Raises:
            KeepError: There are no such rows, or a shard that has some of them is missing or damaged.
        """
        entry = self._entry(name)
        if not entry.shape or not 0 <= start <= stop <= entry.shape[0]:
            raise KeepError(
                f"tensor {excerpt(name)} at step {self.step} is {entry.stored} and has no rows {start} to {stop}; "
                "rows count from 0 to the length of axis 0, and a scalar is read whole, with read"
            )
        return self._read(entry, start, stop)

    def verify(self, shards: Iterable[str] | None = None) -> None:
        """Read every byte and compare it with the digests.

        Args:
            shards: Names of the shards to check; all by default. Those of other hosts may be out of reach.

        Raises:
            KeepError: A shard is missing or damaged.
        """
        names = [record.shard for record in self.manifest.shards] if shards is None else shards
        for name in names:
            verify_shard(self.directory, self.manifest.record(name))
            self._unchecked.discard(name)

    def _entry(self, name: str) -> TensorEntry:
        entry = self.manifest.tensors.get(name)
        if entry is None:
            raise KeepError(f"no tensor {excerpt(name)} at step {self.step}; there are {excerpt(self.names)}")
        return entry

    def _read(self, entry: TensorEntry, start: int, stop: int) -> Array:
        result = allocate(entry.stored.with_rows(stop - start))
        for piece in entry.pieces:
            first, last = max(start, piece.start_row), min(stop, piece.stop_row)
            if first < last:
                target = result[first - start : last - start] if entry.shape else result
                self._read_piece(piece, first - piece.start_row, target)
        return result

    def _read_piece(self, piece: TensorPiece, row: int, target: Array) -> None:
        if piece.shard in self._unchecked:
            self.verify([piece.shard])
        with open_shard(self.directory, self.manifest.record(piece.shard)) as shard:
            shard.read_rows(piece.key, row, target)


class Snapshots:
    """The snapshots under one directory. Steps only grow: to go on from an older snapshot, `rewind` to it.

    Args:
        root: The directory; made with the first snapshot.
        durable: Whether a finished snapshot would survive a loss of power, not only of the process.

    Example:
        >>> import tempfile, numpy
        >>> from stratagem.keep import Manifest, TensorEntry, write_shard
        >>> snapshots = Snapshots(tempfile.mkdtemp())
        >>> record = write_shard(snapshots.directory(100), "ps-0", {"w": numpy.arange(3)})
        >>> snapshots.commit(Manifest(100, [record], {"w": TensorEntry.join([(record, "w")])}))
        >>> snapshots.newest_readable().read("w")
        array([0, 1, 2])
    """

    def __init__(self, root: str | PathLike[str], *, durable: bool = True) -> None:
        self.root = Path(root)
        self._durable = durable

    def steps(self) -> list[int]:
        """Return the steps of all finished snapshots, in order; they are not checked for damage."""
        return [step for step in self._directories() if self._is_finished(step)]

    def latest(self) -> int | None:
        """Return the step of the newest finished snapshot; `None` if there is none."""
        return max(self.steps(), default=None)

    def path(self, step: int) -> Path:
        """Return the directory of the snapshot at a step, whether it exists or not."""
        check_step(step)
        return self.root / step_directory(step)

    # -------------------------------------------------------------- writing

    def directory(self, step: int) -> Path:
        """Return the directory for the shards of a new snapshot, and make it if necessary. Every writer calls this.

        Raises:
            KeepError: There is a finished snapshot of this step or a later one.
        """
        path = self.path(step)
        self._refuse_going_back(step)
        with explain_errors(path, "made"):
            make_directory(path, durable=self._durable)
        return path

    def commit(self, manifest: Manifest) -> None:
        """Finish a snapshot, once all its shards are written: it is valid from here on.

        Raises:
            KeepError: It cannot be written, or there is a finished snapshot of this step or a later one.
        """
        path = self.directory(manifest.step) / MANIFEST
        with explain_errors(path, "written"):
            with new_file(path, durable=self._durable) as file:
                write_all(file, memoryview(manifest.to_bytes()))
            if self._durable:
                sync_directory(self.root)

    def _refuse_going_back(self, step: int) -> None:
        latest = self.latest()
        if latest is not None and step <= latest:
            raise KeepError(
                f"{self.root} has a finished snapshot of step {latest}, so none can be made at step {step}; to go on "
                "from an older snapshot, rewind to it first, and give each job a directory of its own"
            )

    # -------------------------------------------------------------- reading

    def open(self, step: int, *, check_digests: bool = True) -> StoredSnapshot:
        """Return the finished snapshot at a step.

        Args:
            step: Its step.
            check_digests: Whether a shard is checked before the first tensor is read from it. Without that, a
                few rows of a large shard are read without reading it all, and trusted.

        Raises:
            KeepError: There is none, or its manifest is damaged.
        """
        path = self.path(step) / MANIFEST
        if not self._is_finished(step):
            raise KeepError(
                f"{path.parent} is not a finished snapshot; there are those of steps {self.steps()}"
            )
        with explain_errors(path, "read"):
            data = path.read_bytes()
        try:
            manifest = Manifest.from_bytes(data)
            if manifest.step != step:
                raise KeepError(
                    f"it is that of step {manifest.step}: directories of snapshots must not be renamed"
                )
        except KeepError as error:
            raise KeepError(f"{path} is damaged: {error}; use another snapshot") from error
        return StoredSnapshot(path.parent, manifest, check_digests=check_digests)

    def readable(
        self, check: Callable[[StoredSnapshot], object] = StoredSnapshot.verify
    ) -> Iterator[StoredSnapshot]:
        """Yield finished snapshots from the newest to the oldest; damaged ones are skipped, and the log says so.

        Args:
            check: Raises `KeepError` for a snapshot that cannot be used. By default all digests must be right; where
                shards lie on several hosts, only the caller can know.
        """
        damaged: list[tuple[int, KeepError]] = []
        for step in reversed(self.steps()):
            try:
                snapshot = self.open(step)
                check(snapshot)
            except KeepError as error:
                if self._is_finished(step):  # else it was removed meanwhile, as old snapshots are
                    damaged.append((step, error))
                continue
            _warn(damaged, f"the snapshot of step {step} is used instead")
            damaged = []
            yield snapshot
        _warn(damaged, "and there is no older one that can be read")

    def newest_readable(
        self, check: Callable[[StoredSnapshot], object] = StoredSnapshot.verify
    ) -> StoredSnapshot | None:
        """Return the newest snapshot that is not damaged; `None` if there are no finished snapshots at all.

        Args:
            check: As for `readable`.

        Raises:
            KeepError: There are snapshots, but every one is damaged.
        """
        while steps := self.steps():
            for snapshot in self.readable(check):
                return snapshot
            if self.steps() == steps:  # else others removed and added some: look again
                raise KeepError(
                    f"none of the snapshots in {self.root} can be read, of steps {steps}; the log says why of each: "
                    "bring back a copy, or remove them to start anew"
                )
        return None

    # -------------------------------------------------------------- removing

    def prune(self, keep: int, keep_every: int | None = None) -> list[int]:
        """Remove old snapshots, and files that killed processes have left behind.

        The newest finished snapshot always stays, and so does everything of later steps, which may still be written.
        Unfinished snapshots of earlier steps go.

        Args:
            keep: How many of the newest snapshots stay; at least 1.
            keep_every: Snapshots at multiples of this step stay for good.

        Returns:
            The steps removed, for other hosts that have shards of them: see `remove`.
        """
        finished = self.steps()
        staying = steps_to_keep(finished, keep, keep_every)
        if not finished:
            return []
        removed = [step for step in self._directories() if step < finished[-1] and step not in staying]
        for step in removed:
            self.remove(step)
        for step in staying:
            self._remove_files(self.path(step), lambda name: name.endswith(PARTIAL_SUFFIX))
        return removed

    def rewind(self, step: int) -> list[int]:
        """Remove every snapshot later than `step`, finished, damaged or not, so that the run goes on from there.

        Returns:
            The steps removed.
        """
        check_step(step)
        removed = [later for later in reversed(self._directories()) if later > step]
        for later in removed:
            self.remove(later)
        return removed

    def remove(self, step: int) -> None:
        """Remove the snapshot at a step, if there is one; files that are not part of a snapshot stay.

        Its manifest goes first: a snapshot that is half removed is unfinished, not damaged.
        """
        path = self.path(step)
        with explain_errors(path, "removed"):
            if self._is_finished(step):
                with suppress(FileNotFoundError):
                    (path / MANIFEST).unlink()
                    if self._durable:
                        sync_directory(path)
            self._remove_files(path, is_snapshot_file)
            with suppress(FileNotFoundError):  # someone else removes it too
                if not any(path.iterdir()):
                    path.rmdir()

    def _remove_files(self, path: Path, matches: Callable[[str], bool]) -> None:
        with explain_errors(path, "cleared"), suppress(FileNotFoundError):
            for file in list(path.iterdir()):
                if matches(file.name):
                    file.unlink(missing_ok=True)

    # -------------------------------------------------------------- what is there

    def _directories(self) -> list[int]:
        with explain_errors(self.root, "listed"):
            names = [entry.name for entry in self.root.iterdir()] if self.root.is_dir() else []
        return sorted(step for name in names if (step := step_of(name)) is not None)

    def _is_finished(self, step: int) -> bool:
        path = self.path(step) / MANIFEST
        with explain_errors(path, "looked for"):
            return path.is_file()


def _warn(damaged: list[tuple[int, KeepError]], instead: str) -> None:
    for step, error in damaged:
        _log.warning("the snapshot of step %d is skipped: %s (%s)", step, error, instead)


def steps_to_keep(steps: Iterable[int], keep: int, keep_every: int | None = None) -> set[int]:
    """Return the steps whose snapshots stay when old ones are removed.

    Args:
        steps: All steps that have a valid snapshot.
        keep: How many of the newest stay; at least 1, so that the newest always does.
        keep_every: Snapshots at multiples of this step stay, however old; `None` for none.

    Example:
        >>> sorted(steps_to_keep([100, 150, 200, 250, 300], keep=2, keep_every=200))
        [200, 250, 300]
    """
    if type(keep) is not int or keep < 1:
        raise KeepError(
            f"keep is {excerpt(keep)}; it must be a whole number of at least 1: the newest snapshot stays"
        )
    if keep_every is not None and (type(keep_every) is not int or keep_every < 1):
        raise KeepError(
            f"keep_every is {excerpt(keep_every)}; it must be a whole number of at least 1, or None to keep none "
            "for good"
        )
    ordered = sorted(steps)
    lasting = {step for step in ordered if keep_every is not None and step % keep_every == 0}
    return lasting | set(ordered[-keep:])
