"""Many records in one buffer, with their origin: the form that `parse_example` reads fastest."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from stratagem.errors import DataError


class RecordBatch(Sequence[bytes]):
    """A sequence of records that lie in one buffer.

    Args:
        buffer: Holds the records' bytes, and may hold others.
        starts: Where each record begins in the buffer.
        lengths: How long each is.
        offsets: Where each record's frame begins in its file, if it came from one.
        sources: For each file the first row that came from it, and its name.

    Example:
        >>> batch = RecordBatch.of([b"one", b"three"])
        >>> len(batch), batch[1], list(batch[:1])
        (2, b'three', [b'one'])
    """

    def __init__(
        self,
        buffer: bytes,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        offsets: NDArray[np.int64] | None = None,
        sources: Sequence[tuple[int, str]] = (),
    ) -> None:
        self.buffer = buffer
        self.starts = starts
        self.lengths = lengths
        self._offsets = offsets
        self._sources = tuple(sources)

    @classmethod
    def of(cls, records: Iterable[bytes]) -> "RecordBatch":
        """Copy records into one buffer."""
        all_records = list(records)
        for row, record in enumerate(all_records):
            if not isinstance(record, bytes):
                raise DataError(
                    f"record {row} is a {type(record).__name__}; a serialized record is bytes, as "
                    f"`make_example` returns it"
                )
        lengths = np.fromiter(map(len, all_records), np.int64, len(all_records))
        return cls(b"".join(all_records), np.cumsum(lengths) - lengths, lengths)

    @classmethod
    def join(cls, batches: Sequence["RecordBatch"]) -> "RecordBatch":
        """Join batches from files, one after the other; they are copied unless there is only one."""
        if len(batches) == 1:
            return batches[0]
        buffers, starts, offsets, sources = [], [], [], []
        size = rows = 0
        for batch in filter(len, batches):
            first = int(batch.starts[0])
            end = int(batch.starts[-1] + batch.lengths[-1])
            buffers.append(batch.buffer[first:end])
            starts.append(batch.starts - first + size)
            offsets.append(np.full(len(batch), -1) if batch._offsets is None else batch._offsets)
            sources += [(row + rows, name) for row, name in batch._sources]
            size += end - first
            rows += len(batch)
        if not rows:
            return cls.of([])
        lengths = np.concatenate([batch.lengths for batch in batches])
        return cls(b"".join(buffers), np.concatenate(starts), lengths, np.concatenate(offsets), sources)

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> "RecordBatch": ...
    def __getitem__(self, index: int | slice) -> "bytes | RecordBatch":
        if isinstance(index, slice):
            first, stop, step = index.indices(len(self))
            if step != 1:
                raise DataError(f"step {step} is not supported; take records one after the other: step 1")
            # If several files begin at row 0, the row is from the last one.
            sources = [(max(0, row - first), name) for row, name in self._sources if row < stop]
            offsets = None if self._offsets is None else self._offsets[index]
            return RecordBatch(self.buffer, self.starts[index], self.lengths[index], offsets, sources)
        start = int(self.starts[index])
        return self.buffer[start : start + int(self.lengths[index])]

    def where(self, row: int) -> str:
        """Return where a record is, in words for errors."""
        at = bisect_right(self._sources, row, key=lambda source: source[0]) - 1
        if at < 0 or self._offsets is None:
            return f"record {row}"
        return f"{self._sources[at][1]}, record at byte {self._offsets[row]}"
