"""Where each record of a TFRecord file begins: random access and ranges without reading what lies before."""

import mmap
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from stratagem.data.compression import detected_compression, named_errors, opened
from stratagem.data.framing import HEADER, OVERHEAD, Frames, hop, sound_headers, sound_records
from stratagem.data.record_batch import RecordBatch
from stratagem.errors import DataError

_SUFFIX = ".index.npz"


@dataclass(frozen=True, eq=False)
class RecordIndex(Sequence[bytes]):
    """The places of all records of one plain (not compressed) file.

    Attributes:
        path: The file.
        offsets: Where each record's frame begins.
        lengths: How long each record is.
        size: The file's size when it was indexed.
        modified: Its time of modification then, in nanoseconds.

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
        with opened(self.path) as file:
            if identity(file.fileno()) != (self.size, self.modified):
                raise DataError(f"{self.path} has changed since it was indexed; index it again")
            buffer = read_fully(file.fileno(), begin, end - begin, self.path)
        offsets, lengths = self.offsets[first:stop], self.lengths[first:stop]
        frames = Frames(offsets - begin, lengths, end - begin)
        sound = sound_headers(buffer, frames)
        if sound == len(lengths):
            is_sound = sound_records(buffer, frames.starts, lengths)
            sound = len(lengths) if is_sound.all() else int(is_sound.argmin())
        if sound < len(lengths):
            raise DataError(
                f"{self.path}, record at byte {offsets[sound]}: wrong checksum; the file is damaged: "
                f"copy or write it anew"
            )
        return RecordBatch(buffer, frames.starts, lengths, offsets, [(0, str(self.path))])


def index_tfrecord(path: str | os.PathLike[str], *, keep: bool = False) -> RecordIndex:
    """Find where the records of a plain TFRecord file begin.

    An index kept beside the file is used if the file's size and time of modification are still the same.

    Args:
        path: The file. A compressed file has no places to jump to, and is refused.
        keep: Keep the index beside the file, as `NAME.index.npz`, for the next time.
    """
    file = Path(path)
    beside = file.with_name(file.name + _SUFFIX)
    with opened(file) as opened_file:
        descriptor = opened_file.fileno()
        size, modified = identity(descriptor)
        kept = _kept(beside, file, size, modified)
        if kept is not None:
            return kept
        compression = detected_compression(file, os.pread(descriptor, HEADER, 0))
        if compression is not None:
            raise DataError(
                f"{file} is compressed with {compression}, where no record can be jumped to; read it from "
                f"the beginning with read_tfrecord, or write it without compression"
            )
        if size:
            with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as mapped:
                found = hop(mapped)
                if found.end != size:  # a wrong length leads astray: which was it?
                    found = found.first(sound_headers(mapped[:], found))
        else:
            found = hop(b"")
    if found.end != size:
        raise DataError(
            f"{file}, record at byte {found.end}: its length leads beyond the end of the file; this is no "
            f"TFRecord file, or it was cut short or damaged: copy or write it anew"
        )
    index = RecordIndex(file, found.positions, found.lengths, size, modified)
    if keep:
        _keep(beside, index)
    return index


def identity(descriptor: int) -> tuple[int, int]:
    """An open file's size and time of modification: what tells that it has changed."""
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns


def read_fully(descriptor: int, position: int, count: int, name: object) -> bytes:
    """So many bytes from a place in an open file."""
    parts = []
    while count:  # Linux gives at most 2 GiB at a time
        part = os.pread(descriptor, count, position)
        if not part:
            raise DataError(f"{name} ended at byte {position} while it was read; do not change it meanwhile")
        parts.append(part)
        position += len(part)
        count -= len(part)
    return b"".join(parts)


def _kept(beside: Path, path: Path, size: int, modified: int) -> RecordIndex | None:
    """The index beside the file, if there is one, and it is whole and about the file as it is now."""
    try:
        with beside.open("rb") as file, np.load(file) as stored:
            if stored["identity"].tolist() != [size, modified]:
                return None
            offsets, lengths = stored["offsets"].astype(np.int64), stored["lengths"].astype(np.int64)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return RecordIndex(path, offsets, lengths, size, modified)


def _keep(beside: Path, index: RecordIndex) -> None:
    partial = beside.with_name(f".{beside.name}.{os.getpid()}")
    identity = np.array([index.size, index.modified])
    with named_errors(beside, "write"):
        try:
            with partial.open("wb") as file:
                np.savez(file, identity=identity, offsets=index.offsets, lengths=index.lengths)
            partial.replace(beside)
        finally:
            partial.unlink(missing_ok=True)
