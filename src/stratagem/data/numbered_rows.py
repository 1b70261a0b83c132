"""Sources whose rows can be read by number: TFRecord files with an index, arrays, sequences."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stratagem.data.compression import open_unbuffered
from stratagem.data.record_batch import RecordBatch
from stratagem.data.record_index import RecordIndex, checked_batch, file_version, index_tfrecord, read_fully
from stratagem.data.stream_batches import stack
from stratagem.data.tfrecord_frames import OVERHEAD, Frames
from stratagem.errors import DataError


class NumberedRows(ABC):
    """Rows that have numbers from 0 on."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Distinguishes sources with other rows, or another order, as far as that can be seen quickly."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, numbers: NDArray[np.int64]) -> Any:
        """Return a batch of some rows, in the order of their numbers."""


@dataclass(frozen=True, eq=False)
class RecordRows(NumberedRows):
    """The records of several plain TFRecord files, numbered through.

    Attributes:
        indices: Where the records of each file are.
        ends: The number of the first record after each file.
    """

    indices: tuple[RecordIndex, ...]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, files: Sequence[str | os.PathLike[str]]) -> "RecordRows":
        """Index the files."""
        indices = tuple(index_tfrecord(file) for file in files)
        return cls(indices, np.cumsum([len(index) for index in indices], dtype=np.int64))

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def identity(self) -> str:
        """The files' names and numbers of records, in their order; directories may move."""
        digest = hashlib.sha256()
        for index in self.indices:
            digest.update(f"{index.path.name}:{len(index)};".encode())
        return f"{len(self.indices)} files {digest.hexdigest()[:16]}"

    def take(self, numbers: NDArray[np.int64]) -> RecordBatch:
        """Return some records; neighbours are read at once."""
        files = np.searchsorted(self.ends, numbers, side="right")
        offsets = np.empty(len(numbers), np.int64)
        lengths = np.empty(len(numbers), np.int64)
        needed = np.unique(files).tolist()
        for file in needed:
            index = self.indices[file]
            rows = np.flatnonzero(files == file)
            within = numbers[rows] - (int(self.ends[file]) - len(index))
            offsets[rows], lengths[rows] = index.offsets[within], index.lengths[within]
        ends = offsets + lengths + OVERHEAD
        is_first = np.ones(len(numbers), np.bool_)
        is_first[1:] = (files[1:] != files[:-1]) | (offsets[1:] != ends[:-1])
        firsts = np.flatnonzero(is_first)
        lasts = np.append(firsts[1:], len(numbers)) - 1
        with ExitStack() as stack:
            streams = {file: stack.enter_context(_open_unchanged(self.indices[file])) for file in needed}
            buffer = b"".join(
                read_fully(streams[file].fileno(), begin, end - begin, streams[file].name)
                for file, begin, end in zip(
                    files[firsts].tolist(), offsets[firsts].tolist(), ends[lasts].tolist(), strict=True
                )
            )
        positions = np.cumsum(lengths + OVERHEAD) - lengths - OVERHEAD
        changes = np.flatnonzero(np.diff(files, prepend=-1)).tolist()
        sources = [(row, str(self.indices[files[row]].path)) for row in changes]
        return checked_batch(buffer, Frames(positions, lengths, len(buffer)), offsets, sources)


@contextmanager
def _open_unchanged(index: RecordIndex) -> Iterator[BinaryIO]:
    with open_unbuffered(index.path) as stream:
        if file_version(stream.fileno()) != (index.size, index.modified):
            raise DataError(f"{index.path} has changed since it was indexed; begin anew")
        yield stream


@dataclass(frozen=True, eq=False)
class ArrayRows(NumberedRows):
    """Arrays with the rows first: one alone, or in dicts and tuples, however nested.

    Attributes:
        columns: The arrays.
        rows: The number of rows of each of them.
    """

    columns: Any
    rows: int

    @classmethod
    def of(cls, columns: Any) -> "ArrayRows":
        """Check that all arrays have the same number of rows."""
        lengths = _lengths(columns, "source")
        if len(set(lengths.values())) != 1:
            rows = ", ".join(f"{path}: {length}" for path, length in lengths.items())
            raise DataError(f"arrays of one source must have the same number of rows; got {rows or 'none'}")
        return cls(columns, next(iter(lengths.values())))

    def __len__(self) -> int:
        return self.rows

    @property
    def identity(self) -> str:
        """The kind alone: looking at the values would take too long."""
        return "arrays"

    def take(self, numbers: NDArray[np.int64]) -> Any:
        """Return some rows of every array."""
        return _take(self.columns, numbers)


@dataclass(frozen=True, eq=False)
class ElementRows(NumberedRows):
    """A sequence of elements, each an array, a number, or a dict, list or tuple of these.

    Attributes:
        elements: Anything with a length and indices.
    """

    elements: Any

    def __len__(self) -> int:
        return len(self.elements)

    @property
    def identity(self) -> str:
        """The kind alone: looking at the values would take too long."""
        return "elements"

    def take(self, numbers: NDArray[np.int64]) -> Any:
        """Return some elements, stacked."""
        return stack([self.elements[number] for number in numbers.tolist()])


def _lengths(columns: Any, path: str) -> dict[str, int]:
    if isinstance(columns, Mapping):
        parts: Any = columns.items()
    elif isinstance(columns, tuple):
        parts = enumerate(columns)
    else:
        array = columns if hasattr(columns, "shape") else np.asarray(columns)
        if not array.shape:
            raise DataError(f"{path} is {columns!r}, which has no rows; give arrays with the rows first")
        return {path: int(array.shape[0])}
    lengths: dict[str, int] = {}
    for key, part in parts:
        lengths |= _lengths(part, f"{path}[{key!r}]")
    return lengths


def _take(columns: Any, numbers: NDArray[np.int64]) -> Any:
    if isinstance(columns, Mapping):
        return {key: _take(part, numbers) for key, part in columns.items()}
    if isinstance(columns, tuple):
        parts = [_take(part, numbers) for part in columns]
        return type(columns)(*parts) if hasattr(columns, "_fields") else tuple(parts)
    return np.asarray(columns)[numbers]
