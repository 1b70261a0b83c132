"""A table while it is trained, or after: its rows looked up, iterated over and exported."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from stratagem.errors import DataError, KeepError, StrategyError
from stratagem.keep import map_file, write_file
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.row_source import RowSource
from stratagem.tables.table import Table

_PAGE = 4096


class TableView:
    """The rows of one table, as they are when they are asked for. Never is all of it in the memory of this process.

    Args:
        source: Where the rows are.
        stack: In which stack.
        table: The table.
        offset: Where its ids begin in the stack.
    """

    def __init__(self, source: RowSource, stack: int, table: Table, offset: int) -> None:
        self._source = source
        self._stack = stack
        self._table = table
        self._offset = offset
        self._is_alone = len(source.stacks[stack].tables) == 1

    def __len__(self) -> int:
        """How many rows have been trained so far."""
        if self._is_alone:
            return self._source.count(self._stack)
        return sum(len(ids) for ids, _ in self.items())

    def lookup(self, ids: Any) -> Array:
        """The values of ids, of the shape of the ids and then the table's dim; first values where none was trained.

        Raises:
            DataError: Ids are no integers, or not of this table.
        """
        wanted = np.asarray(ids)
        if wanted.dtype.kind not in "iu":
            raise DataError(
                f"table {self._table.name!r} was asked for ids of type {wanted.dtype}; ids are integers"
            )
        if wanted.dtype == np.uint64 and wanted.size and wanted.max() > np.iinfo(np.int64).max:
            raise DataError(
                f"table {self._table.name!r} was asked for the id {wanted.max()}; ids are signed 64-bit integers"
            )
        wanted = wanted.astype(np.int64)
        rows = self._table.rows
        if rows is not None and wanted.size and not (wanted.min() >= 0 and wanted.max() < rows):
            wrong = wanted[(wanted < 0) | (wanted >= rows)][0]
            raise DataError(f"table {self._table.name!r} has ids 0 to {rows - 1}; got {wrong}")
        unique, places = np.unique(wanted + self._offset, return_inverse=True)
        values: Array = self._source.read(self._stack, unique)[places.reshape(-1)]
        return values.reshape(*wanted.shape, self._table.dim)

    def items(self, size: int = _PAGE) -> Iterator[tuple[Array, Array]]:
        """All rows that have been trained, at most so many at a time: ids and values."""
        if not isinstance(size, int) or size < 1:
            raise StrategyError(f"items(size={size!r}): give a whole number of at least 1")
        last = None if self._table.rows is None else self._offset + self._table.rows
        for ids, (values, *_) in self._source.pages(self._stack, size):
            if not self._is_alone:
                is_own = (ids >= self._offset) & (ids < last)
                ids, values = ids[is_own] - self._offset, values[is_own]
            if len(ids):
                yield ids, values

    def put(self, put: Callable[[int, Array, Array], None], ids: Array, values: Array) -> None:
        """Give rows values from elsewhere.

        Args:
            put: Does that for ids of a stack.
            ids: The ids, each once.
            values: Their values.
        """
        put(self._stack, ids + self._offset, values)

    def export(self, path: str | PathLike[str]) -> None:
        """Write all rows that have been trained to a safetensors file: `ids`, and `values` in their order.

        They pass through this process a few at a time.

        Args:
            path: The file; one that is there already is replaced.

        Raises:
            KeepError: It cannot be written.
        """
        columns = {
            "ids": ((), np.dtype(np.int64)),
            "values": ((self._table.dim,), np.dtype(self._table.dtype)),
        }
        with ExitStack() as stack:
            parts = {name: stack.enter_context(TemporaryFile(dir=Path(path).parent)) for name in columns}
            count = 0
            for page in self.items():
                count += len(page[0])
                for part, array in zip(parts.values(), page, strict=True):
                    part.write(np.ascontiguousarray(array).view(np.uint8).data)
            for part in parts.values():
                part.flush()
            arrays = {
                name: np.memmap(parts[name], dtype, "r", shape=(count, *shape))
                if count
                else np.empty((0, *shape), dtype)
                for name, (shape, dtype) in columns.items()
            }
            write_file(path, arrays)


def exported_rows(
    path: str | PathLike[str], table: Table, size: int = _PAGE
) -> Iterator[tuple[Array, Array]]:
    """The rows of a table in a file that `export` has written, so many at a time: ids and values.

    Raises:
        KeepError: The file cannot be read, or has rows of another kind.
    """
    arrays = map_file(path)
    ids, values = arrays.get("ids"), arrays.get("values")
    if (
        ids is None
        or values is None
        or ids.dtype != np.int64
        or ids.shape != (len(values),)
        or (values.shape[1:], values.dtype) != ((table.dim,), np.dtype(table.dtype))
    ):
        told = {name: f"{array.dtype}{list(array.shape)}" for name, array in arrays.items()}
        raise KeepError(
            f"{path} has {told}; the rows of table {table.name!r} are 'ids' of int64[n] and 'values' of "
            f"{table.dtype}[n, {table.dim}]"
        )
    for start in range(0, len(ids), size):
        own = np.array(ids[start : start + size])
        if table.rows is not None and not (own.min() >= 0 and own.max() < table.rows):
            raise KeepError(
                f"{path} has ids that are not of table {table.name!r}, which are 0 to {table.rows - 1}"
            )
        yield own, np.array(values[start : start + size])


def table_view(source: RowSource, name: str) -> TableView:
    """The table of this name.

    Raises:
        StrategyError: There is none.
    """
    for number, stack in enumerate(source.stacks):
        for table, offset in zip(stack.tables, stack.offsets, strict=True):
            if table.name == name:
                return TableView(source, number, table, offset)
    names = [table.name for stack in source.stacks for table in stack.tables]
    raise StrategyError(f"there is no table {name!r}; there are {names}")
