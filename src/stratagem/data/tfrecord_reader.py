"""Reads TFRecord files, record by record or in batches, and divides files among workers."""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from stratagem.data.compression import (
    InflatedStream,
    detect_compression,
    open_unbuffered,
    parse_compression,
)
from stratagem.data.record_batch import RecordBatch
from stratagem.data.record_index import index_tfrecord
from stratagem.data.tfrecord_frames import HEADER, FramedBuffer, FrameStream, sound_records
from stratagem.errors import DataError

OnError = Literal["raise", "skip"]
_log = logging.getLogger(__name__)


class RecordReader:
    """The records of some TFRecord files, from `read_tfrecord`; each iteration begins anew.

    Attributes:
        skipped: How many damaged records the latest iteration has skipped (`on_error="skip"`). An unreadable length
            and all that follows in its file count as one.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        compression: str | None,
        num_shards: int,
        shard_index: int,
        records: range | None,
        on_error: OnError,
        verify: bool,
    ) -> None:
        self._paths = paths
        self._compression = compression
        self._num_shards, self._shard_index = num_shards, shard_index
        self._records = records
        self._skips, self._verifies = on_error == "skip", verify
        self.skipped = 0

    def __iter__(self) -> Iterator[bytes]:
        for batch in self._batches():
            buffer = batch.buffer
            for start, end in zip(
                batch.starts.tolist(), (batch.starts + batch.lengths).tolist(), strict=True
            ):
                yield buffer[start:end]

    def batches(self, size: int, *, drop_remainder: bool = False) -> Iterator[RecordBatch]:
        """Yield batches of records, for `parse_example`; the last may be smaller.

        Args:
            size: Records per batch.
            drop_remainder: Leave out a last batch that is smaller.
        """
        if size < 1:
            raise DataError(f"a batch of {size} records; it needs at least 1")
        parts: list[RecordBatch] = []
        missing = size
        for batch in self._batches():
            position = 0
            while len(batch) - position >= missing:
                parts.append(batch[position : position + missing])
                position += missing
                yield RecordBatch.join(parts)
                parts, missing = [], size
            if position < len(batch):
                parts.append(batch[position:])
                missing -= len(batch) - position
        if parts and not drop_remainder:
            yield RecordBatch.join(parts)

    def _batches(self) -> Iterator[RecordBatch]:
        """Yield batches of any size, as the files are read."""
        self.skipped = 0
        stop = None if self._records is None else self._records.stop
        number = 0
        for path in self._paths:
            if stop is not None and number >= stop:
                return
            with open_unbuffered(path) as file:
                frames, skipped = self._frame_stream(path, file, number)
                number += skipped
                for batch, count in self._file_batches(frames, number):
                    if len(batch):
                        yield batch
                    number += count
                    if stop is not None and number >= stop:
                        return

    def _frame_stream(self, path: Path, file: BinaryIO, number: int) -> tuple[FrameStream, int]:
        """Return a file's frames from the first that may be needed on, and how many come before it."""
        compression = (
            detect_compression(path, file.read(HEADER))
            if self._compression == "auto"
            else parse_compression(self._compression)
        )
        file.seek(0)
        if compression is not None:
            stream = InflatedStream(file, compression, path)
            return FrameStream(stream, f"{path} (decompressed)", 0, None, self._verifies), 0
        size = os.fstat(file.fileno()).st_size
        skipped = offset = 0
        # A damaged file cannot be indexed, so with errors to skip it is read from its beginning.
        if self._records is not None and self._records.start > number and size and not self._skips:
            index = index_tfrecord(path)
            skipped = min(self._records.start - number, len(index))
            offset = int(index.offsets[skipped]) if skipped < len(index) else size
            file.seek(offset)
        return FrameStream(file, str(path), offset, size, self._verifies), skipped

    def _file_batches(self, stream: FrameStream, number: int) -> Iterator[tuple[RecordBatch, int]]:
        """Yield the chosen and sound records of each buffer, and how many records were in it."""
        buffers = iter(stream)
        while True:
            try:
                buffer = next(buffers, None)
            except DataError as error:
                if not self._skips:
                    raise
                self._skip(str(error))
                return
            if buffer is None:
                return
            count = len(buffer.frames.positions)
            batch = self._batch(buffer, stream.source, self._choice(number, count))
            is_sound = (
                sound_records(batch.buffer, batch.starts, batch.lengths)
                if self._verifies
                else np.ones(len(batch), np.bool_)
            )
            if is_sound.all():
                yield batch, count
            else:
                first = int(is_sound.argmin())
                problem = f"{batch.where(first)}: wrong checksum of its data"
                if not self._skips:
                    yield batch[:first], 0
                    raise DataError(
                        f"{problem}; the file is damaged: copy or write it anew, or pass on_error='skip'"
                    )
                self._skip(problem, int((~is_sound).sum()))
                chosen = np.arange(number, number + count)[self._choice(number, count)]
                yield self._batch(buffer, stream.source, chosen[is_sound] - number), count
            number += count

    def _batch(
        self, buffer: FramedBuffer, source: str, chosen: slice | NDArray[np.bool_] | NDArray[np.intp]
    ) -> RecordBatch:
        frames = buffer.frames
        offsets = frames.positions[chosen] + buffer.offset
        return RecordBatch(
            buffer.buffer, frames.starts[chosen], frames.lengths[chosen], offsets, [(0, source)]
        )

    def _choice(self, number: int, count: int) -> slice | NDArray[np.bool_]:
        """Return which of the next records belong to this reader."""
        if self._num_shards == 1 and self._records is None:
            return slice(None)
        numbers = np.arange(number, number + count)
        chosen: NDArray[np.bool_] = numbers % self._num_shards == self._shard_index
        if self._records is not None:
            chosen &= (numbers >= self._records.start) & (numbers < self._records.stop)
        return chosen

    def _skip(self, problem: str, count: int = 1) -> None:
        self.skipped += count
        _log.warning("skipped %d: %s", count, problem)


@dataclass(frozen=True)
class FileShard:
    """One worker's part of some files, for `read_tfrecord`.

    Attributes:
        files: The files to read.
        num_shards: Read only each `num_shards`-th record in them.
        shard_index: The first of these records.
    """

    files: tuple[Path, ...]
    num_shards: int = 1
    shard_index: int = 0


def shard_files(files: Sequence[str | os.PathLike[str]], num: int, index: int) -> FileShard:
    """Divide files among workers: whole files if there are enough, else the records of all of them.

    Every worker gives the same files in the same order. No record is read twice, and none is left out.

    Args:
        files: All files.
        num: The number of workers.
        index: The index of this worker, from 0.

    Example:
        >>> [path.name for path in shard_files(["a", "b", "c"], num=2, index=0).files]
        ['a', 'c']
        >>> shard = shard_files(["a"], num=2, index=1)
        >>> len(shard.files), shard.num_shards, shard.shard_index
        (1, 2, 1)
    """
    if isinstance(files, str | os.PathLike):
        raise DataError(f"files={files!r} is one path; give a list, even of one")
    if num < 1 or not 0 <= index < num:
        raise DataError(f"worker {index} of {num}; give num >= 1 and 0 <= index < num")
    paths = tuple(Path(file) for file in files)
    if not paths:
        raise DataError("there are no files; check the pattern that was to find them")
    if len(paths) >= num:
        own = paths[index::num]
        _log.info("%d files for %d workers: worker %d reads %d whole files", len(paths), num, index, len(own))
        return FileShard(own)
    _log.info(
        "%d files for %d workers, fewer than workers: each reads all files and takes every %d-th record, "
        "worker %d from record %d on",
        len(paths), num, num, index, index,
    )  # fmt: skip
    return FileShard(paths, num, index)


def read_tfrecord(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | FileShard,
    *,
    compression: str | None = "auto",
    num_shards: int = 1,
    shard_index: int = 0,
    records: range | None = None,
    on_error: OnError = "raise",
    verify: bool = True,
) -> RecordReader:
    """Read the records of one or several TFRecord files.

    Args:
        files: A path, several, or the result of `shard_files`.
        compression: "gzip", "zlib" or None; "auto" looks at each file's first bytes, then at its suffix.
        num_shards: Read only each `num_shards`-th record, counted over all files.
        shard_index: The first of these records.
        records: Read only records with these numbers, counted over all files; plain files are not read before
            the first of them, unless damage is to be skipped.
        on_error: "raise", or "skip" to skip, count and log damaged records. A record whose bytes are
            damaged is skipped alone. If a length is damaged, nothing tells where the next record begins:
            the rest of that file is skipped, and counts as one.
        verify: Compare checksums. Otherwise damage shows in parsed values, or not at all.

    Returns:
        An iterable of bytes, whose `batches(size)` yields `RecordBatch`es for `parse_example`.

    Example:
        >>> from stratagem.data import write_tfrecord
        >>> write_tfrecord("numbers.tfrecord", [b"zero", b"one", b"two"])
        3
        >>> list(read_tfrecord("numbers.tfrecord"))
        [b'zero', b'one', b'two']
        >>> list(read_tfrecord("numbers.tfrecord", num_shards=2, shard_index=1))
        [b'one']
    """
    if isinstance(files, FileShard):
        if num_shards != 1:
            raise DataError(
                f"num_shards={num_shards} for files that shard_files has already divided; give one of the two"
            )
        num_shards, shard_index, files = files.num_shards, files.shard_index, files.files
    if num_shards < 1 or not 0 <= shard_index < num_shards:
        raise DataError(
            f"shard {shard_index} of {num_shards}; give num_shards >= 1 and 0 <= shard_index < num_shards"
        )
    if records is not None and (records.step != 1 or records.start < 0):
        raise DataError(
            f"records={records}; give a range of consecutive numbers from 0, such as range(100, 200)"
        )
    if on_error not in ("raise", "skip"):
        raise DataError(f"on_error={on_error!r}; give 'raise' or 'skip'")
    if compression != "auto":
        parse_compression(compression)
    paths = [files] if isinstance(files, str | os.PathLike) else files
    return RecordReader(
        [Path(path) for path in paths],
        compression=compression,
        num_shards=num_shards,
        shard_index=shard_index,
        records=records,
        on_error=on_error,
        verify=verify,
    )
