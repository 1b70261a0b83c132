"""Reading TFRecord files: record by record, or in batches that share a buffer."""

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from stratagem.data.compression import Inflated, detected_compression, named_compression, opened
from stratagem.data.frame_stream import FramedBuffer, FrameStream
from stratagem.data.framing import HEADER, sound_records
from stratagem.data.record_batch import RecordBatch
from stratagem.data.record_index import index_tfrecord
from stratagem.data.sharding import FileShard
from stratagem.errors import DataError

OnError = Literal["raise", "skip"]
_log = logging.getLogger(__name__)


class RecordReader:
    """The records of some TFRecord files, as `read_tfrecord` chose them; each iteration begins anew.

    Attributes:
        skipped: How many damaged records the latest iteration has left out (`on_error="skip"`). What follows
            an unreadable length, up to the end of its file, counts as one.
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
        for batch in self._pieces():
            buffer = batch.buffer
            for start, end in zip(
                batch.starts.tolist(), (batch.starts + batch.lengths).tolist(), strict=True
            ):
                yield buffer[start:end]

    def batches(self, size: int, *, drop_remainder: bool = False) -> Iterator[RecordBatch]:
        """Batches of records, for `parse_example`; the last may be smaller.

        Args:
            size: Records per batch.
            drop_remainder: Leave out a last batch that is smaller.
        """
        if size < 1:
            raise DataError(f"a batch of {size} records; it needs at least 1")
        waiting: list[RecordBatch] = []
        missing = size
        for piece in self._pieces():
            position = 0
            while len(piece) - position >= missing:
                waiting.append(piece[position : position + missing])
                position += missing
                yield RecordBatch.joined(waiting)
                waiting, missing = [], size
            if position < len(piece):
                waiting.append(piece[position:])
                missing -= len(piece) - position
        if waiting and not drop_remainder:
            yield RecordBatch.joined(waiting)

    def _pieces(self) -> Iterator[RecordBatch]:
        """Batches of any size, as the files are read."""
        self.skipped = 0
        stop = None if self._records is None else self._records.stop
        number = 0
        for path in self._paths:
            if stop is not None and number >= stop:
                return
            with opened(path) as file:
                framed, passed = self._framed(path, file, number)
                number += passed
                for piece, count in self._of_file(framed, number):
                    if len(piece):
                        yield piece
                    number += count
                    if stop is not None and number >= stop:
                        return

    def _framed(self, path: Path, file: BinaryIO, number: int) -> tuple[FrameStream, int]:
        """A file's frames from the first that can be wanted on, and how many were passed over."""
        compression = (
            detected_compression(path, file.read(HEADER))
            if self._compression == "auto"
            else named_compression(self._compression)
        )
        file.seek(0)
        if compression is not None:
            stream = Inflated(file, compression, path)
            return FrameStream(stream, f"{path} (decompressed)", 0, None, self._verifies), 0
        size = os.fstat(file.fileno()).st_size
        passed = offset = 0
        # A damaged file cannot be indexed, so with errors to skip it is read from its beginning.
        if self._records is not None and self._records.start > number and size and not self._skips:
            index = index_tfrecord(path)
            passed = min(self._records.start - number, len(index))
            offset = int(index.offsets[passed]) if passed < len(index) else size
            file.seek(offset)
        return FrameStream(file, str(path), offset, size, self._verifies), passed

    def _of_file(self, framed: FrameStream, number: int) -> Iterator[tuple[RecordBatch, int]]:
        """The chosen and sound records of each buffer, and how many records were in it."""
        buffers = iter(framed)
        while True:
            try:
                found = next(buffers, None)
            except DataError as error:
                if not self._skips:
                    raise
                self._skip(str(error))
                return
            if found is None:
                return
            count = len(found.frames.positions)
            piece = self._piece(found, framed.source, self._chosen(number, count))
            is_sound = (
                sound_records(piece.buffer, piece.starts, piece.lengths)
                if self._verifies
                else np.ones(len(piece), np.bool_)
            )
            if is_sound.all():
                yield piece, count
            else:
                first = int(is_sound.argmin())
                problem = f"{piece.where(first)}: wrong checksum of its data"
                if not self._skips:
                    yield piece[:first], 0
                    raise DataError(
                        f"{problem}; the file is damaged: copy or write it anew, or pass on_error='skip'"
                    )
                self._skip(problem, int((~is_sound).sum()))
                chosen = np.arange(number, number + count)[self._chosen(number, count)]
                yield self._piece(found, framed.source, chosen[is_sound] - number), count
            number += count

    def _piece(
        self, found: FramedBuffer, source: str, chosen: slice | NDArray[np.bool_] | NDArray[np.intp]
    ) -> RecordBatch:
        frames = found.frames
        offsets = frames.positions[chosen] + found.offset
        return RecordBatch(
            found.buffer, frames.starts[chosen], frames.lengths[chosen], offsets, [(0, source)]
        )

    def _chosen(self, number: int, count: int) -> slice | NDArray[np.bool_]:
        """Which of the next records belong to this reader."""
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
        files: A path, several, or what `shard_files` returned.
        compression: "gzip", "zlib" or None; "auto" looks at each file's first bytes, then at its suffix.
        num_shards: Read only each `num_shards`-th record, counted over all files,
        shard_index: beginning with this one.
        records: Read only records of these numbers, counted over all files; plain files are not read before
            the first of them, unless damage is to be skipped.
        on_error: "raise", or "skip" to leave damaged records out, count and log them. A record whose bytes are
            damaged is left out alone. Where a length is damaged, nothing tells where the next record begins:
            the rest of that file is given up, and counts as one.
        verify: Compare checksums. Without, damage shows in what is parsed, or not at all.

    Returns:
        An iterable of bytes, whose `batches(size)` gives `RecordBatch`es for `parse_example`.

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
                f"num_shards={num_shards} for what shard_files has shared out already; give one of the two"
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
        named_compression(compression)
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
