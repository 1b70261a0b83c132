"""An index of a TFRecord file: random access to records and ranges without reading the records before."""

import mmap
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from stratagem.data.compression import detect_compression, file_errors, open_unbuffered
from stratagem.data.record_batch import RecordBatch
from stratagem.data.tfrecord_frames import (
    HEADER,
    OVERHEAD,
    Frames,
    count_sound_frames,
    count_sound_headers,
    find_frames,
)
from stratagem.errors import DataError

_SUFFIX = ".index.npz"


@dataclass(frozen=True, eq=False)
class RecordIndex(Sequence[bytes]):
    """The positions of all records of one plain (not compressed) file.

    Attributes:
        path: The file.
        offsets: Where each record's frame begins.
        lengths: How long each record is.
        size: The file's size when it was indexed.
        modified: Its modification time then, in nanoseconds.

    Example:
        >>> from stratagem.data import index_tfrecord, write_tfrecord
        >>> _ = write_tfrecord("numbers.tfrecord", [b"zero", b"one", b"two"])
        >>> index = index_tfrecord("numbers.tfrecord")
        >>> len(index), index[1], list(index[1:])
        (3, b'one', [b'one', b'two'])
    """

    path: Path
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    size: int
    modified: int

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> RecordBatch: ...
    def __getitem__(self, index: int | slice) -> bytes | RecordBatch:
        if isinstance(index, slice):
            first, stop, step = index.indices(len(self))
            if step != 1:
                raise DataError(f"step {step} is not supported; take records one after the other: step 1")
            return self._read(first, max(first, stop))
        if not -len(self) <= index < len(self):
            raise IndexError(f"record {index} of {self.path}: it has {len(self)}")
        return self._read(index % len(self), index % len(self) + 1)[0]

    def _read(self, first: int, stop: int) -> RecordBatch:
        if first == stop:
            return RecordBatch.of([])
        begin = int(self.offsets[first])
        end = int(self.offsets[stop - 1] + self.lengths[stop - 1] + OVERHEAD)
        with open_unbuffered(self.path) as file:
            if file_version(file.fileno()) != (self.size, self.modified):
                raise DataError(f"{self.path} has changed since it was indexed; index it again")
            buffer = read_fully(file.fileno(), begin, end - begin, self.path)
        offsets, lengths = self.offsets[first:stop], self.lengths[first:stop]
        frames = Frames(offsets - begin, lengths, end - begin)
        return checked_batch(buffer, frames, offsets, [(0, str(self.path))])


def checked_batch(
    buffer: bytes, frames: Frames, offsets: NDArray[np.int64], sources: Sequence[tuple[int, str]]
) -> RecordBatch:
    """Return the records of some frames as a `RecordBatch`; `DataError` if a checksum is wrong."""
    batch = RecordBatch(buffer, frames.starts, frames.lengths, offsets, sources)
    sound = count_sound_frames(buffer, frames)
    if sound < len(batch):
        raise DataError(f"{batch.where(sound)}: wrong checksum; the file is damaged: copy or write it anew")
    return batch


def index_tfrecord(path: str | os.PathLike[str], *, keep: bool = False) -> RecordIndex:
    """Find where the records of a plain TFRecord file begin.

    An index saved beside the file is used if the file's size and modification time are still the same.

    Args:
        path: The file. A compressed file is refused: no record in it can be jumped to.
        keep: Save the index beside the file, as `NAME.index.npz`, for the next time.
    """
    file = Path(path)
    beside = file.with_name(file.name + _SUFFIX)
    with open_unbuffered(file) as stream:
        descriptor = stream.fileno()
        size, modified = file_version(descriptor)
        index = _load(beside, file, size, modified)
        if index is not None:
            return index
        compression = detect_compression(file, os.pread(descriptor, HEADER, 0))
        if compression is not None:
            raise DataError(
                f"{file} is compressed with {compression}, where no record can be jumped to; read it from "
                f"the beginning with read_tfrecord, or write it without compression"
            )
        if size:
            with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as mapped:
                frames = find_frames(mapped)
                if frames.end != size:  # a wrong length leads astray: find it
                    frames = frames.first(count_sound_headers(mapped[:], frames))
        else:
            frames = find_frames(b"")
    if frames.end != size:
        raise DataError(
            f"{file}, record at byte {frames.end}: its length leads beyond the end of the file; this is not a "
            f"TFRecord file, or it was cut short or damaged: copy or write it anew"
        )
    index = RecordIndex(file, frames.positions, frames.lengths, size, modified)
    if keep:
        _save(beside, index)
    return index


def file_version(descriptor: int) -> tuple[int, int]:
    """Return an open file's size and modification time, which show that it has changed."""
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns


def read_fully(descriptor: int, position: int, count: int, name: object) -> bytes:
    """Return `count` bytes from a position in an open file."""
    parts = []
    while count:  # Linux gives at most 2 GiB at a time
        part = os.pread(descriptor, count, position)
        if not part:
            raise DataError(f"{name} ended at byte {position} while it was read; do not change it meanwhile")
        parts.append(part)
        position += len(part)
        count -= len(part)
    return b"".join(parts)


def _load(beside: Path, path: Path, size: int, modified: int) -> RecordIndex | None:
    """Return the index beside the file, if there is one that is complete and matches the file as it is now."""
    try:
        with beside.open("rb") as file, np.load(file) as stored:
            if stored["identity"].tolist() != [size, modified]:
                return None
            offsets, lengths = stored["offsets"].astype(np.int64), stored["lengths"].astype(np.int64)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return RecordIndex(path, offsets, lengths, size, modified)


def _save(beside: Path, index: RecordIndex) -> None:
    partial = beside.with_name(f".{beside.name}.{os.getpid()}")
    identity = np.array([index.size, index.modified])
    with file_errors(beside, "write"):
        try:
            with partial.open("wb") as file:
                np.savez(file, identity=identity, offsets=index.offsets, lengths=index.lengths)
            partial.replace(beside)
        finally:
            partial.unlink(missing_ok=True)
