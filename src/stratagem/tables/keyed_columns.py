"""Columns whose rows belong to ids: found, added and removed for many ids at once."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem.runtime.wire.arrays import Array
from stratagem.tables.columns import Column
from stratagem.tables.index import MOST_DIRECT, DirectIndex, HashIndex, Index


class KeyedColumns:
    """One row for each id that was added. Ids are given once each, as signed 64-bit integers.

    Args:
        bound: Ids are from 0 and below it; `None`: any.
        columns: Shape and type of an entry of each column.

    Attributes:
        ids: The id of each row.
        columns: The columns. A row that was added again has what its place had before.
        end: Rows are below it; some of these may be free.
    """

    def __init__(self, bound: int | None, columns: Sequence[tuple[Sequence[int], Any]]) -> None:
        self.ids = Column((), np.int64)
        self.columns = [Column(shape, dtype) for shape, dtype in columns]
        is_direct = bound is not None and bound <= MOST_DIRECT
        self._index: Index = DirectIndex(bound) if is_direct else HashIndex(self.ids)  # type: ignore[arg-type]
        self.end = 0
        self._free: list[Array] = []
        self._num_free = 0
        self._turn = 0

    def __len__(self) -> int:
        return self.end - self._num_free

    @property
    def row_bytes(self) -> int:
        """How many bytes one row takes."""
        return sum(column.entry_bytes for column in (self.ids, *self.columns))

    def find(self, ids: Array) -> Array:
        """The row of each id; -1 where there is none."""
        return self._index.find(ids)

    def add(self, ids: Array) -> Array:
        """Rows for ids that have none."""
        rows = self._allocated(len(ids))
        self.ids.array[rows] = ids
        self._index.add(ids, rows)
        return rows

    def find_or_add(self, ids: Array) -> tuple[Array, Array]:
        """The row of each id, and the places of those among them that had none before."""
        rows = self.find(ids)
        new = np.flatnonzero(rows < 0)
        rows[new] = self.add(ids[new])
        return rows, new

    def remove(self, ids: Array) -> None:
        """Let the rows of ids go."""
        rows = self._index.find(ids)
        self._index.remove(ids)
        self._free.append(rows)
        self._num_free += len(rows)

    def in_turn(self, count: int) -> Array:
        """So many rows, free ones among them, which follow those of the last time in a circle."""
        rows: Array = (np.arange(self._turn, self._turn + min(count, self.end)) % max(1, self.end)).astype(
            np.int32
        )
        self._turn = (self._turn + len(rows)) % max(1, self.end)
        return rows

    def _allocated(self, count: int) -> Array:
        parts: list[Array] = []
        while self._free and count:
            free = self._free.pop()
            if len(free) > count:
                self._free.append(free[count:])
                free = free[:count]
            parts.append(free)
            count -= len(free)
            self._num_free -= len(free)
        for column in (self.ids, *self.columns):
            column.reserve(self.end + count)
        parts.append(np.arange(self.end, self.end + count, dtype=np.int32))
        self.end += count
        return np.concatenate(parts) if len(parts) > 1 else parts[0]
