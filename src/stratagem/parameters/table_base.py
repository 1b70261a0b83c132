"""All rows of a server's tables in files, once in a while: snapshots then have only what has changed since.

A base is written page by page while training goes on, so its rows are of different steps. Every row that has changed since
the first page was begun is in the snapshots that stand on it, as it was at their step: together they are of that step. Every
snapshot has links to the files of its base, which so go when the last snapshot goes that needs them.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from stratagem.keep import ShardRecord, read_shard, write_shard
from stratagem.keep.disk import explain_errors, make_directory
from stratagem.parameters.table_part import TablePart
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.table_files import PREFIX

_BASE = f"{PREFIX}base"
_PAGE = 1 << 18
FEWEST = 1 << 16
"""Below so many rows that have changed, there is no need for a new base."""


class TableBase:
    """The base of one server's snapshots.

    Args:
        tables: The rows.
        directory: Where the files of the present base, and of the one before, are.
        name: What the names of the files begin with.
    """

    def __init__(self, tables: TablePart, directory: Path, name: str) -> None:
        self._tables = tables
        self._directory = directory
        self._name = name
        self._base: tuple[int, tuple[ShardRecord, ...]] = (-1, ())

    def forget(self) -> None:
        """Rows are about to be replaced: have no base."""
        self._base = -1, ()

    def differences(self) -> dict[str, Array]:
        """Copies of all rows that have changed since the base was begun, and what it is; for a snapshot."""
        step, records = self._base
        base = json.dumps([record.to_dict() for record in records]).encode()
        return {**self._tables.copies(step), _BASE: np.frombuffer(base, np.uint8)}

    def link(self, arrays: Mapping[str, Array], directory: Path) -> None:
        """Give a snapshot of these arrays its links to the files of its base."""
        for record in _base_of(arrays):
            with explain_errors(directory / record.file, "written"):
                try:
                    os.link(self._directory / record.file, directory / record.file)
                except FileExistsError:
                    pass
                except (PermissionError, NotImplementedError):  # a file system without links
                    shutil.copyfile(self._directory / record.file, directory / record.file)

    def renew_if_due(self, arrays: Mapping[str, Array]) -> None:
        """Write a new base if a snapshot of these arrays, which has just been written, had too many differences."""
        base = self._base
        records = base[1]
        known = sum(
            _rows_of({name: each.shape for name, each in record.arrays.items()}) for record in records
        )
        changed = _rows_of({name: array.shape for name, array in arrays.items()})
        if changed < max(FEWEST, known // 2):
            return
        began, present = self._tables.step, {record.file for record in records}
        with explain_errors(self._directory, "written"):
            make_directory(self._directory, durable=False)
            # Snapshots that stand on the present base may still be on their way; older ones have their links.
            for path in self._directory.iterdir():
                if path.name not in present:
                    path.unlink()
        new = tuple(
            write_shard(self._directory, f"{self._name}-{began}-{number}", page)
            for number, page in enumerate(self._tables.pages(_PAGE))
        )
        if self._base is base:  # not if rows were replaced meanwhile
            self._base = began, new

    def restore(self, arrays: Mapping[str, Array], step: int, directory: Path) -> None:
        """Have the rows of a snapshot in a directory.

        Raises:
            KeepError: A file of its base is missing or damaged.
        """
        for record in _base_of(arrays):
            self._tables.restore(read_shard(directory, record), step)
        self._tables.restore(arrays, step)
        # The files may be on another disk by now, or gone: the next base is made by itself.
        self.forget()


def _base_of(arrays: Mapping[str, Array]) -> list[ShardRecord]:
    return [ShardRecord.from_dict(each) for each in json.loads(arrays[_BASE].tobytes())]


def _rows_of(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(shape[0] for name, shape in shapes.items() if name.endswith("/ids"))
