"""How a record stands in a TFRecord file: its length, a checksum of the length, its bytes, a checksum of them.

The length is a uint64, a checksum a masked CRC-32C as uint32, all little-endian.
"""

import mmap
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stratagem.data.byte_windows import numbers_at
from stratagem.data.checksum import masked_crc32c, masked_crc32c_of_each, masked_crc32c_of_lengths

HEADER, FOOTER = 12, 4
OVERHEAD = HEADER + FOOTER
LONGEST_RECORD = (1 << 31) - 1
"""The longest message that protocol buffers allow; a longer length is taken for damage."""

_LENGTH = Struct("<Q")
_CHECKSUM = Struct("<I")
_LONGEST_RUN = 4096


class Frames(NamedTuple):
    """Whole frames in a buffer, one after the other.

    Attributes:
        positions: Where each frame begins.
        lengths: How long each record is.
        end: Where the first frame that is not whole begins.
    """

    positions: NDArray[np.int64]
    lengths: NDArray[np.int64]
    end: int

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where each record begins."""
        return self.positions + HEADER

    def first(self, count: int) -> "Frames":
        """The first frames only."""
        end = int(self.positions[count]) if count < len(self.positions) else self.end
        return Frames(self.positions[:count], self.lengths[:count], end)


def framed(records: Sequence[bytes]) -> bytes:
    """Records as they stand in a file, one after the other."""
    lengths = np.fromiter(map(len, records), np.int64, len(records))
    joined = b"".join(records)
    headers = np.empty(len(records), [("length", "<u8"), ("checksum", "<u4")])
    headers["length"] = lengths
    headers["checksum"] = masked_crc32c_of_lengths(lengths.astype(np.uint64))
    footers = masked_crc32c_of_each(joined, np.cumsum(lengths) - lengths, lengths).astype("<u4")
    parts: list[bytes] = []
    before, after = headers.tobytes(), footers.tobytes()
    for number, record in enumerate(records):
        parts += (before[12 * number : 12 * number + 12], record, after[4 * number : 4 * number + 4])
    return b"".join(parts)


def announced_length(header: bytes) -> int | None:
    """The length that a frame's first twelve bytes announce; None if its checksum is wrong."""
    length: int = _LENGTH.unpack_from(header)[0]
    return length if _CHECKSUM.unpack_from(header, 8)[0] == masked_crc32c(header[:8]) else None


def hop(buffer: bytes | mmap.mmap) -> Frames:
    """Find the frames in a buffer by hopping from length to length, without looking at checksums.

    Files with records of one length are common: where two lengths are the same, the next ones are looked at
    together.
    """
    size, position, previous = len(buffer), 0, -1
    positions: list[int] = []
    lengths: list[int] = []
    while size - position >= HEADER:
        length = _LENGTH.unpack_from(buffer, position)[0]
        stride = length + OVERHEAD
        if position + stride > size:
            break
        count = _run(buffer, position, length) if length == previous else 1
        positions.extend(range(position, position + count * stride, stride))
        lengths.extend([length] * count)
        position += count * stride
        previous = length
    return Frames(np.array(positions, np.int64), np.array(lengths, np.int64), position)


def _run(buffer: bytes | mmap.mmap, position: int, length: int) -> int:
    """How many frames with records of this length follow each other."""
    stride = length + OVERHEAD
    count = min((len(buffer) - position) // stride, _LONGEST_RUN)
    found = np.ndarray((count,), "<u8", buffer, position, (stride,))
    is_same = found == length
    return count if is_same.all() else int(is_same.argmin())


def sound_headers(buffer: bytes, frames: Frames) -> int:
    """How many frames from the first on have a length with the right checksum."""
    raw = np.frombuffer(buffer, np.uint8)
    stored = numbers_at(raw, frames.positions + 8, "<u4")
    is_right = stored == masked_crc32c_of_lengths(frames.lengths.astype(np.uint64))
    return len(is_right) if is_right.all() else int(is_right.argmin())


def sound_records(buffer: bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which records have the right checksum."""
    stored = numbers_at(np.frombuffer(buffer, np.uint8), starts + lengths, "<u4")
    return np.asarray(stored == masked_crc32c_of_each(buffer, starts, lengths))
