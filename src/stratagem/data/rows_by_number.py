"""Sources whose rows can be taken by number: TFRecord files with an index, columns of arrays, sequences."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from stratagem.data.compression import opened
from stratagem.data.framing import OVERHEAD, Frames, sound_headers, sound_records
from stratagem.data.record_batch import RecordBatch
from stratagem.data.record_index import RecordIndex, index_tfrecord, read_fully
from stratagem.data.stacking import stack
from stratagem.errors import DataError


class NumberedRows(Protocol):
    """Rows that have numbers from 0 on.

    Attributes:
        identity: Tells sources apart whose rows are others, or come in another order, as far as that can be seen.
    """

    @property
    def identity(self) -> str:
        """See above."""
        ...

    def __len__(self) -> int: ...

    def take(self, numbers: NDArray[np.int64]) -> Any:
        """A batch of these rows, in this order."""
        ...


@dataclass(frozen=True, eq=False)
class RecordFiles:
    """The records of several plain TFRecord files, counted through.

    Attributes:
        indices: Where the records of each file are.
        ends: The number of the first record after each file.
    """

    indices: tuple[RecordIndex, ...]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, files: Sequence[str | os.PathLike[str]]) -> "RecordFiles":
        """Index the files."""
        indices = tuple(index_tfrecord(file) for file in files)
        return cls(indices, np.cumsum([len(index) for index in indices], dtype=np.int64))

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def identity(self) -> str:
        """By the files' names and numbers of records, in their order; directories may move."""
        found = hashlib.sha256()
        for index in self.indices:
            found.update(f"{index.path.name}:{len(index)};".encode())
        return f"{len(self.indices)} files {found.hexdigest()[:16]}"

    def take(self, numbers: NDArray[np.int64]) -> RecordBatch:
        """These records, in this order; neighbours are read at once."""
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
            streams = {file: stack.enter_context(_opened_unchanged(self.indices[file])) for file in needed}
            buffer = b"".join(
                read_fully(streams[file].fileno(), begin, end - begin, streams[file].name)
                for file, begin, end in zip(
                    files[firsts].tolist(), offsets[firsts].tolist(), ends[lasts].tolist(), strict=True
                )
            )
        return self._checked(buffer, offsets, lengths, files)

    def _checked(
        self,
        buffer: bytes,
        offsets: NDArray[np.int64],
        lengths: NDArray[np.int64],
        files: NDArray[np.intp],
    ) -> RecordBatch:
        ends = np.cumsum(lengths + OVERHEAD)
        found = Frames(ends - lengths - OVERHEAD, lengths, len(buffer))
        changes = np.flatnonzero(np.diff(files, prepend=-1)).tolist()
        sources = [(row, str(self.indices[files[row]].path)) for row in changes]
        batch = RecordBatch(buffer, found.starts, lengths, offsets, sources)
        sound = sound_headers(buffer, found)
        if sound == len(lengths):
            is_sound = sound_records(buffer, found.starts, lengths)
            sound = len(lengths) if is_sound.all() else int(is_sound.argmin())
        if sound < len(lengths):
            raise DataError(
                f"{batch.where(sound)}: wrong checksum; the file is damaged: copy or write it anew"
            )
        return batch


@contextmanager
def _opened_unchanged(index: RecordIndex) -> Iterator[BinaryIO]:
    with opened(index.path) as stream:
        found = os.fstat(stream.fileno())
        if (found.st_size, found.st_mtime_ns) != (index.size, index.modified):
            raise DataError(f"{index.path} has changed since it was indexed; begin anew")
        yield stream


@dataclass(frozen=True, eq=False)
class Columns:
    """Arrays with the rows first, in a dict, a tuple, nested as one likes, or one alone.

    Attributes:
        columns: The arrays.
        rows: How many rows all of them have.
    """

    columns: Any
    rows: int

    @classmethod
    def of(cls, columns: Any) -> "Columns":
        """Check that all have the same number of rows."""
        lengths = _lengths(columns, "source")
        if len(set(lengths.values())) != 1:
            told = ", ".join(f"{path}: {length}" for path, length in lengths.items())
            raise DataError(f"arrays of one source must have the same number of rows; got {told or 'none'}")
        return cls(columns, next(iter(lengths.values())))

    def __len__(self) -> int:
        return self.rows

    @property
    def identity(self) -> str:
        """By their number: to look at what is in them would take too long."""
        return "arrays"

    def take(self, numbers: NDArray[np.int64]) -> Any:
        """These rows of every array."""
        return _taken(self.columns, numbers)


@dataclass(frozen=True, eq=False)
class Elements:
    """A sequence of elements, each an array, a number, or a dict, list or tuple of these.

    Attributes:
        elements: Anything with a length and places.
    """

    elements: Any

    def __len__(self) -> int:
        return len(self.elements)

    @property
    def identity(self) -> str:
        """By their number: to look at what is in them would take too long."""
        return "elements"

    def take(self, numbers: NDArray[np.int64]) -> Any:
        """These elements, stacked."""
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
    found: dict[str, int] = {}
    for key, part in parts:
        found |= _lengths(part, f"{path}[{key!r}]")
    return found


def _taken(columns: Any, numbers: NDArray[np.int64]) -> Any:
    if isinstance(columns, Mapping):
        return {key: _taken(part, numbers) for key, part in columns.items()}
    if isinstance(columns, tuple):
        parts = [_taken(part, numbers) for part in columns]
        return type(columns)(*parts) if hasattr(columns, "_fields") else tuple(parts)
    return np.asarray(columns)[numbers]
