"""The checkpoints of a training on disk: states as named host arrays, written and read."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from stratagem.errors import KeepError
from stratagem.keep import (
    Manifest,
    ShardRecord,
    Snapshots,
    StoredArray,
    StoredSnapshot,
    TensorEntry,
    write_shard,
)
from stratagem.keep.checked_json import plain
from stratagem.keep.stored_snapshots import steps_to_keep
from stratagem.tables.table_files import PREFIX, TableFiles
from stratagem.training.state_arrays import check_form

_log = logging.getLogger("stratagem")
_KIND = "checkpoint"
_DATA = "data"
_TABLES = "tables"
_SHARD = "chief"
Shards: TypeAlias = tuple[list[ShardRecord], dict[str, TensorEntry]]
"""The shards of a checkpoint that parameter servers have written, and the arrays in them."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory.

    Attributes:
        step: The global step.
        seed: The seed of random numbers.
        arrays: Host arrays by name.
        data: The position in the data: plain values or bytes.
        form: The shapes and dtypes of tables.
        tables: The files that hold the tables' rows, if they are written.
    """

    step: int
    seed: int
    arrays: Mapping[str, Any]
    data: Any = None
    form: Mapping[str, StoredArray] = field(default_factory=dict)
    tables: TableFiles | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.data, bytes):
            object.__setattr__(self, "data", plain(self.data, "data"))


@dataclass
class CheckpointFiles:
    """The checkpoints in one directory.

    Attributes:
        directory: The directory, which is made with the first checkpoint.
        keep: The number of newest checkpoints to keep.
        keep_every: Checkpoints at multiples of this step are kept for good.
        newest: The newest step that was written or read here; -1 before.
    """

    directory: str | PathLike[str]
    keep: int
    keep_every: int | None
    newest: int = -1
    _skipped: dict[int, str] = field(default_factory=dict)
    _has_warned: bool = False

    def __post_init__(self) -> None:
        steps_to_keep((), self.keep, self.keep_every)
        root = Path(self.directory).absolute()
        existing = next(path for path in (root, *root.parents) if path.exists())
        if not existing.is_dir():
            raise KeepError(
                f"{root} cannot hold checkpoints: {existing} is not a directory; give another one, or move that away"
            )
        self.snapshots = Snapshots(root)

    # Writing.

    def is_wanted(self, step: int, form: Mapping[str, StoredArray]) -> bool:
        """Return whether to write a checkpoint of this step: none of it, or of a later step, was written or read here.

        Raises:
            KeepError: There is one of another training, or of another model.
        """
        if step <= self.newest:
            if step < self.newest and not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "%s has a checkpoint of step %d, so none is made at step %d, nor until training is past that: to begin "
                    "anew, give the training a directory of its own; to go back, use restore(like, step)",
                    self.snapshots.root,
                    self.newest,
                    step,
                )
            return False
        self._has_warned = False
        latest = max((each for each in self.snapshots.steps() if each not in self._skipped), default=None)
        if latest is None:
            return True
        if step <= latest:
            raise KeepError(
                f"{self.snapshots.root} has a checkpoint of step {latest} already, so none can be made at step {step}: it "
                "is left from another training. Begin with restore, to go on from it; or give this training a directory "
                "of its own; or remove that one"
            )
        if self.newest < 0:
            snapshot = self.snapshots.open(latest)
            check_form(_form(snapshot), form, f"the checkpoint of step {latest} in {self.snapshots.root}")
        return True

    def make(self, step: int) -> None:
        """Make the directory of a new checkpoint, and remove skipped checkpoints."""
        for skipped, reason in self._skipped.items():
            _log.warning("%s is removed: %s", self.snapshots.path(skipped), reason)
            self.snapshots.remove(skipped)
        self._skipped.clear()
        self.snapshots.directory(step)

    def write(self, checkpoint: Checkpoint, others: Callable[[], Shards] | None = None) -> None:
        """Write a checkpoint, which is valid when this returns, and remove old ones.

        Args:
            checkpoint: The part of it that this process holds.
            others: Waits for the parts that parameter servers write, and returns them.
        """
        arrays = dict(checkpoint.arrays)
        meta: dict[str, Any] = {"kind": _KIND, "seed": checkpoint.seed}
        if checkpoint.form:
            meta[_TABLES] = {name: [list(each.shape), each.dtype] for name, each in checkpoint.form.items()}
        if isinstance(checkpoint.data, bytes):
            arrays[_DATA] = np.frombuffer(checkpoint.data, np.uint8)
        else:
            meta[_DATA] = checkpoint.data
        self.make(checkpoint.step)
        path = self.snapshots.path(checkpoint.step)
        records, entries = ([], {}) if others is None else others()
        for record in records:
            _check_exists(path, record)
        own = write_shard(path, _SHARD, arrays)
        entries = {
            **entries,
            **{name: TensorEntry.join([(own, name)]) for name in arrays if not name.startswith(PREFIX)},
        }
        self.snapshots.commit(Manifest(checkpoint.step, [*records, own], entries, meta))
        self.newest = checkpoint.step
        _log.info("a checkpoint of step %d is in %s", checkpoint.step, path)
        try:
            self.snapshots.prune(self.keep, self.keep_every)
        except KeepError as error:
            _log.warning("old checkpoints could not be removed: %s", error)

    # Reading.

    def read(self, form: Mapping[str, StoredArray], step: int | None = None) -> Checkpoint | None:
        """Return the checkpoint of a step, or the newest that is not damaged; `None` if there is none at all.

        Raises:
            KeepError: All are damaged, or that of the step is; or it is of another model.
        """
        while True:
            snapshot = self._open(step)
            if snapshot is None:
                return None
            try:
                return self._read(snapshot, form)
            except KeepError:
                if step is not None or snapshot.step in self.snapshots.steps():
                    raise
                # Another process removed it meanwhile, as an old one: there is a newer one.

    def _open(self, step: int | None) -> StoredSnapshot | None:
        if step is None:
            return self.snapshots.newest_readable()
        snapshot = self.snapshots.open(step)
        snapshot.verify()
        return snapshot

    def _read(self, snapshot: StoredSnapshot, form: Mapping[str, StoredArray]) -> Checkpoint:
        meta, where = (
            snapshot.manifest.meta,
            f"the checkpoint of step {snapshot.step} in {self.snapshots.root}",
        )
        if meta.get("kind") != _KIND:
            raise KeepError(
                f"{snapshot.directory} is not a checkpoint, but a snapshot of parameter servers: use another directory"
            )
        check_form(_form(snapshot), form, where)
        arrays = {name: snapshot.read(name) for name in form if name in snapshot.names}
        data = snapshot.read(_DATA).tobytes() if _DATA in snapshot.names else meta.get(_DATA)
        self.newest = snapshot.step
        tables = (
            TableFiles.among(snapshot.directory, snapshot.step, snapshot.manifest.shards)
            if _TABLES in meta
            else None
        )
        return Checkpoint(snapshot.step, int(meta["seed"]), arrays, data, tables=tables)

    def skip_newer(self, reason: str) -> None:
        """Have checkpoints newer than the one that was read removed when the next is written."""
        self._skipped = {step: reason for step in self.snapshots.steps() if step > self.newest}


def _form(snapshot: StoredSnapshot) -> dict[str, StoredArray]:
    tables = {
        name: StoredArray(tuple(shape), dtype)
        for name, (shape, dtype) in snapshot.manifest.meta.get(_TABLES, {}).items()
    }
    return {name: entry.stored for name, entry in snapshot.manifest.tensors.items() if name != _DATA} | tables


def _check_exists(directory: Path, record: ShardRecord) -> None:
    file = directory / record.file
    if not file.is_file() or file.stat().st_size != record.nbytes:
        raise KeepError(
            f"a parameter server has written {file}, but this host cannot see it: do all hosts share the directory of "
            "checkpoints?"
        )
