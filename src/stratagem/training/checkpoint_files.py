"""The checkpoints of a run on disk: a state as named host arrays, written and found again."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

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
from stratagem.training.checkpoint_form import check_form

_log = logging.getLogger("stratagem")
_KIND = "checkpoint"
_DATA = "data"
_TABLES = "tables"
_SHARD = "chief"
Shards = tuple[list[ShardRecord], dict[str, TensorEntry]]
"""What others have written of a checkpoint, and what is in it."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint in memory.

    Attributes:
        step: The global step.
        seed: What random numbers are drawn from.
        arrays: Host arrays by name.
        data: Where the data stood: plain values or bytes.
        form: Of tables, what there is of them.
        tables: The files that have their rows, once they are written.
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
        directory: The directory; made with the first checkpoint.
        keep: How many of the newest stay.
        keep_every: Checkpoints at multiples of this step stay for good.
        reached: The newest step that was written or read here; -1 before.
    """

    directory: str | PathLike[str]
    keep: int
    keep_every: int | None
    reached: int = -1
    _passed_over: dict[int, str] = field(default_factory=dict)
    _has_told: bool = False

    def __post_init__(self) -> None:
        steps_to_keep((), self.keep, self.keep_every)
        root = Path(self.directory).absolute()
        there = next(path for path in (root, *root.parents) if path.exists())
        if not there.is_dir():
            raise KeepError(
                f"{root} cannot hold checkpoints: {there} is no directory; give another one, or move that away"
            )
        self.cuts = Snapshots(root)

    # Writing.

    def is_wanted(self, step: int, form: Mapping[str, StoredArray]) -> bool:
        """Whether there is no checkpoint of this step, or a later one, that was written or read here.

        Raises:
            KeepError: There is one of another training, or of another model.
        """
        if step <= self.reached:
            if step < self.reached and not self._has_told:
                self._has_told = True
                _log.warning(
                    "%s has a checkpoint of step %d, and none is made at step %d, nor until training is past that: to begin "
                    "anew give it a directory of its own, to go back use restore(like, step)",
                    self.cuts.root,
                    self.reached,
                    step,
                )
            return False
        self._has_told = False
        latest = max((found for found in self.cuts.steps() if found not in self._passed_over), default=None)
        if latest is None:
            return True
        if step <= latest:
            raise KeepError(
                f"{self.cuts.root} has a checkpoint of step {latest} already, so none can be made at step {step}: it "
                "is left from another training. Begin with restore, to go on from it; or give this training a directory "
                "of its own; or remove that one"
            )
        if self.reached < 0:
            cut = self.cuts.open(latest)
            check_form(_form(cut), form, f"the checkpoint of step {latest} in {self.cuts.root}")
        return True

    def make(self, step: int) -> None:
        """The directory of a new checkpoint; later ones that were passed over are removed."""
        for found, why in self._passed_over.items():
            _log.warning("%s is removed: %s", self.cuts.path(found), why)
            self.cuts.remove(found)
        self._passed_over.clear()
        self.cuts.directory(step)

    def write(self, saved: Saved, others: Callable[[], Shards] | None = None) -> None:
        """Write a checkpoint; it is valid when this returns, and then old ones are removed.

        Args:
            saved: What this process has of it.
            others: Waits for what others write of it.
        """
        arrays = dict(saved.arrays)
        meta: dict[str, Any] = {"kind": _KIND, "seed": saved.seed}
        if saved.form:
            meta[_TABLES] = {name: [list(each.shape), each.dtype] for name, each in saved.form.items()}
        if isinstance(saved.data, bytes):
            arrays[_DATA] = np.frombuffer(saved.data, np.uint8)
        else:
            meta[_DATA] = saved.data
        self.make(saved.step)
        path = self.cuts.path(saved.step)
        records, entries = ([], {}) if others is None else others()
        for record in records:
            _check_is_here(path, record)
        own = write_shard(path, _SHARD, arrays)
        entries = {
            **entries,
            **{name: TensorEntry.join([(own, name)]) for name in arrays if not name.startswith(PREFIX)},
        }
        self.cuts.commit(Manifest(saved.step, [*records, own], entries, meta))
        self.reached = saved.step
        _log.info("a checkpoint of step %d is in %s", saved.step, path)
        try:
            self.cuts.prune(self.keep, self.keep_every)
        except KeepError as error:
            _log.warning("old checkpoints could not be removed: %s", error)

    # Reading.

    def read(self, form: Mapping[str, StoredArray], step: int | None = None) -> Saved | None:
        """The checkpoint at a step, or the newest that is not damaged; `None` if there is none at all.

        Raises:
            KeepError: All are damaged, or that of the step is; or it is of another model.
        """
        while True:
            cut = self._found(step)
            if cut is None:
                return None
            try:
                return self._read(cut, form)
            except KeepError:
                if step is not None or cut.step in self.cuts.steps():
                    raise
                # It was removed meanwhile, as old ones are: there is a newer one.

    def _found(self, step: int | None) -> StoredSnapshot | None:
        if step is None:
            return self.cuts.newest_readable()
        cut = self.cuts.open(step)
        cut.verify()
        return cut

    def _read(self, cut: StoredSnapshot, form: Mapping[str, StoredArray]) -> Saved:
        meta, where = cut.manifest.meta, f"the checkpoint of step {cut.step} in {self.cuts.root}"
        if meta.get("kind") != _KIND:
            raise KeepError(
                f"{cut.directory} is no checkpoint, but a snapshot of parameter servers: use another directory"
            )
        check_form(_form(cut), form, where)
        arrays = {name: cut.read(name) for name in form if name in cut.names}
        data = cut.read(_DATA).tobytes() if _DATA in cut.names else meta.get(_DATA)
        self.reached = cut.step
        tables = TableFiles.among(cut.directory, cut.step, cut.manifest.shards) if _TABLES in meta else None
        return Saved(cut.step, int(meta["seed"]), arrays, data, tables=tables)

    def pass_over(self, why: str) -> None:
        """Training goes on from what was read: when it is saved the next time, newer checkpoints are removed."""
        self._passed_over = {step: why for step in self.cuts.steps() if step > self.reached}


def _form(cut: StoredSnapshot) -> dict[str, StoredArray]:
    tables = {
        name: StoredArray(tuple(shape), dtype)
        for name, (shape, dtype) in cut.manifest.meta.get(_TABLES, {}).items()
    }
    return {name: entry.stored for name, entry in cut.manifest.tensors.items() if name != _DATA} | tables


def _check_is_here(directory: Path, record: ShardRecord) -> None:
    file = directory / record.file
    if not file.is_file() or file.stat().st_size != record.nbytes:
        raise KeepError(
            f"{file} was written by a parameter server, and it is not here: is the directory of checkpoints one that all "
            "hosts share?"
        )
