"""Where the rows of a model's tables are, and the view of one table that users look rows up with."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from stratagem.errors import DataError, KeepError, StrategyError
from stratagem.keep import StoredArray, map_file, write_file
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.stacks import Stack
from stratagem.tables.table import Table
from stratagem.tables.table_files import TableFiles

_PAGE = 4096
_INT64 = np.iinfo(np.int64)


class RowSource(ABC):
    """The rows of a model's tables.

    Attributes:
        stacks: The tables, as they are kept together.
    """

    stacks: list[Stack]

    @property
    @abstractmethod
    def form(self) -> dict[str, StoredArray]:
        """The arrays of each stack, by which a checkpoint of one model is told from that of another."""

    @abstractmethod
    def copies(self) -> dict[str, Array]:
        """Return copies of the rows in this process, by their names in a file."""

    @abstractmethod
    def restore(self, files: TableFiles) -> None:
        """Replace the rows in this process by those in files."""

    @abstractmethod
    def count(self, stack: int) -> int:
        """Return the number of rows of a stack."""

    @abstractmethod
    def read(self, stack: int, ids: Array) -> Array:
        """Return the values of ids, each given once; of an id that has no row, its first value."""

    @abstractmethod
    def pages(self, stack: int, size: int) -> Iterator[tuple[Array, Sequence[Array]]]:
        """Yield all rows of a stack, at most `size` at a time: ids, then values and slots."""


class TableView:
    """The rows of one table, as they are when they are asked for, never all of them in this process's memory.

    Args:
        source: Where the rows are.
        stack: The number of the table's stack.
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
        """Return the number of rows that have been trained so far."""
        if self._is_alone:
            return self._source.count(self._stack)
        return sum(len(ids) for ids, _ in self.items())

    def lookup(self, ids: Any) -> Array:
        """Return the values of ids, in an array of the ids' shape and then the table's dim.

        Ids that have not been trained have their first values.

        Raises:
            DataError: Ids are not integers, or not of this table.
        """
        name, rows = self._table.name, self._table.rows
        wanted = np.asarray(ids)
        if wanted.dtype.kind not in "iu":
            raise DataError(f"table {name!r} was asked for ids of type {wanted.dtype}; ids are integers")
        if wanted.dtype == np.uint64 and wanted.size and wanted.max() > _INT64.max:
            raise DataError(
                f"table {name!r} was asked for the id {wanted.max()}; ids are signed 64-bit integers"
            )
        wanted = wanted.astype(np.int64)
        if rows is not None and wanted.size and not (wanted.min() >= 0 and wanted.max() < rows):
            wrong = wanted[(wanted < 0) | (wanted >= rows)][0]
            raise DataError(f"table {name!r} has ids 0 to {rows - 1}; got {wrong}")
        unique, places = np.unique(wanted + self._offset, return_inverse=True)
        values: Array = self._source.read(self._stack, unique)[places.reshape(-1)]
        return values.reshape(*wanted.shape, self._table.dim)

    def items(self, size: int = _PAGE) -> Iterator[tuple[Array, Array]]:
        """Yield the ids and values of all rows that have been trained, at most `size` at a time."""
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
        """Set the values of rows.

        Args:
            put: Sets values of a stack, given its number, ids and values.
            ids: The ids, each once.
            values: Their values.
        """
        put(self._stack, ids + self._offset, values)

    def export(self, path: str | PathLike[str]) -> None:
        """Write all rows that have been trained to a safetensors file: `ids`, and `values` in their order.

        They pass through this process a few at a time.

        Args:
            path: The file; an existing one is replaced.

        Raises:
            KeepError: The file cannot be written.
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


def read_exported_rows(
    path: str | PathLike[str], table: Table, size: int = _PAGE
) -> Iterator[tuple[Array, Array]]:
    """Yield the ids and values of a table from a file that `TableView.export` wrote, `size` rows at a time.

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
        contents = {name: f"{array.dtype}{list(array.shape)}" for name, array in arrays.items()}
        raise KeepError(
            f"{path} has {contents}; the rows of table {table.name!r} are 'ids' of int64[n] and 'values' of "
            f"{table.dtype}[n, {table.dim}]"
        )
    for start in range(0, len(ids), size):
        page = np.array(ids[start : start + size])
        if table.rows is not None and not (page.min() >= 0 and page.max() < table.rows):
            raise KeepError(
                f"{path} has ids that are not of table {table.name!r}, which are 0 to {table.rows - 1}"
            )
        yield page, np.array(values[start : start + size])


def table_view(source: RowSource, name: str) -> TableView:
    """Return the view of the table of this name.

    Raises:
        StrategyError: There is no such table.
    """
    for number, stack in enumerate(source.stacks):
        for table, offset in zip(stack.tables, stack.offsets, strict=True):
            if table.name == name:
                return TableView(source, number, table, offset)
    names = [table.name for stack in source.stacks for table in stack.tables]
    raise StrategyError(f"there is no table {name!r}; there are {names}")
