"""The frames of a TFRecord file: a record's length, a checksum of the length, its bytes, and a checksum of them.

The length is a uint64, a checksum a uint32, both little-endian. A checksum is a CRC-32C that is rotated and shifted
("masked").
"""

import mmap
from collections.abc import Iterator, Sequence
from functools import cache
from struct import Struct
from typing import NamedTuple, Protocol

import google_crc32c
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from stratagem.errors import DataError

HEADER, FOOTER = 12, 4
OVERHEAD = HEADER + FOOTER
LONGEST_RECORD = (1 << 31) - 1
"""The longest message that protocol buffers allow; a longer length is taken for damage."""

_LENGTH = Struct("<Q")
_CHECKSUM = Struct("<I")
_LONGEST_RUN = 4096
_CHUNK = 1 << 22
_MASK_DELTA = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF


class ByteStream(Protocol):
    """A source of bytes."""

    def read(self, count: int) -> bytes:
        """Return at most `count` bytes; none at the end."""


class Frames(NamedTuple):
    """Whole frames in a buffer, one after the other.

    Attributes:
        positions: Where each frame begins.
        lengths: How long each record is.
        end: Where the first incomplete frame begins.
    """

    positions: NDArray[np.int64]
    lengths: NDArray[np.int64]
    end: int

    @property
    def starts(self) -> NDArray[np.int64]:
        """The position of each record."""
        return self.positions + HEADER

    def first(self, count: int) -> "Frames":
        """Return the first frames only."""
        end = int(self.positions[count]) if count < len(self.positions) else self.end
        return Frames(self.positions[:count], self.lengths[:count], end)


def frame_records(records: Sequence[bytes]) -> bytes:
    """Return records as they stand in a file, one after the other."""
    lengths = np.fromiter(map(len, records), np.int64, len(records))
    joined = b"".join(records)
    headers = np.empty(len(records), [("length", "<u8"), ("checksum", "<u4")])
    headers["length"] = lengths
    headers["checksum"] = length_checksums(lengths.astype(np.uint64))
    footers = _record_checksums(joined, np.cumsum(lengths) - lengths, lengths).astype("<u4")
    parts: list[bytes] = []
    before, after = headers.tobytes(), footers.tobytes()
    for number, record in enumerate(records):
        parts += (before[12 * number : 12 * number + 12], record, after[4 * number : 4 * number + 4])
    return b"".join(parts)


def announced_length(header: bytes) -> int | None:
    """Return the length that a frame's first twelve bytes announce; None if its checksum is wrong."""
    length: int = _LENGTH.unpack_from(header)[0]
    return length if _CHECKSUM.unpack_from(header, 8)[0] == checksum(header[:8]) else None


def find_frames(buffer: bytes | mmap.mmap) -> Frames:
    """Find the frames in a buffer by jumping from length to length, without looking at checksums.

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
    """Return how many frames with records of this length follow each other."""
    stride = length + OVERHEAD
    count = min((len(buffer) - position) // stride, _LONGEST_RUN)
    lengths = np.ndarray((count,), "<u8", buffer, position, (stride,))
    return _leading(lengths == length)


def _leading(flags: NDArray[np.bool_]) -> int:
    """Return how many flags from the first on are true."""
    return len(flags) if flags.all() else int(flags.argmin())


def count_sound_headers(buffer: bytes, frames: Frames) -> int:
    """Return how many frames from the first on have a length with the right checksum."""
    checksums = _numbers_at(buffer, frames.positions + 8, "<u4")
    return _leading(checksums == length_checksums(frames.lengths.astype(np.uint64)))


def sound_records(buffer: bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which records have the right checksum."""
    checksums = _numbers_at(buffer, starts + lengths, "<u4")
    return np.asarray(checksums == _record_checksums(buffer, starts, lengths))


def count_sound_frames(buffer: bytes, frames: Frames) -> int:
    """Return how many frames from the first on have right checksums, of their lengths and of their records."""
    sound = count_sound_headers(buffer, frames)
    if sound < len(frames.lengths):
        return sound
    return _leading(sound_records(buffer, frames.starts, frames.lengths))


# ------------------------------------------------------------------- frames of a stream


class FramedBuffer(NamedTuple):
    """Some bytes of a stream, and the whole frames in them.

    Attributes:
        buffer: The bytes.
        frames: At least one frame, from the first byte on.
        offset: Where in the stream the bytes begin.
    """

    buffer: bytes
    frames: Frames
    offset: int


class FrameStream:
    """Reads frames a buffer at a time until the stream ends; anything but an end after a whole frame is an error.

    Args:
        stream: Where the bytes come from.
        source: Its name in errors; an attribute too.
        offset: How many bytes of it lie before the first that is read.
        size: How many bytes it has, if that is known.
        verify: Whether to compare the checksums of lengths.
    """

    def __init__(self, stream: ByteStream, source: str, offset: int, size: int | None, verify: bool) -> None:
        self._stream, self.source, self._size = stream, source, size
        self._offset = offset
        self._verifies = verify

    def __iter__(self) -> Iterator[FramedBuffer]:
        rest = b""
        while buffer := self._more(rest):
            frames = find_frames(buffer)
            if self._verifies:
                # A wrong length leads astray, so the frames behind it do not count.
                frames = frames.first(count_sound_headers(buffer, frames))
            if len(frames.positions):
                yield FramedBuffer(buffer, frames, self._offset)
            rest = buffer[frames.end :]
            self._offset += frames.end

    def _more(self, rest: bytes) -> bytes:
        """Return the rest and what follows it: at least one whole frame, or nothing at the end."""
        parts, have = [rest], len(rest)
        need: int | None = None
        while True:
            if need is None and have >= HEADER:
                parts = [b"".join(parts)]
                need = OVERHEAD + self._length(parts[0])
            if need is not None and have >= need:
                return b"".join(parts)
            # Memory is allocated as bytes come, not as a length announces them.
            part = self._stream.read(_CHUNK)
            if not part:
                break
            parts.append(part)
            have += len(part)
        if not have:
            return b""
        raise DataError(
            f"{self.source}, record at byte {self._offset}: only {have} bytes follow, and the record with its frame "
            f"takes {need or f'at least {OVERHEAD}'}; {self._advice()}"
        )

    def _length(self, header: bytes) -> int:
        """Return the length of the record that begins here, if it is possible."""
        length = announced_length(header)
        place = f"{self.source}, record at byte {self._offset}"
        if length is None and (self._verifies or self._offset == 0):
            what = (
                "this is not a TFRecord file, or not with this compression"
                if self._offset == 0
                else "the file is damaged, and nothing tells where the next record begins: copy or write it anew, or "
                "pass on_error='skip' to do without the rest of it"
            )
            raise DataError(f"{place}: wrong checksum of the length in {header[:HEADER].hex()}; {what}")
        if length is None:
            length = int.from_bytes(header[:8], "little")
        if length > LONGEST_RECORD:
            raise DataError(
                f"{place}: announces {length} bytes; a record has at most {LONGEST_RECORD} (2 GiB): "
                f"write smaller records"
            )
        if self._size is not None and self._offset + OVERHEAD + length > self._size:
            raise DataError(
                f"{place}: announces {length} bytes, but the file ends at byte {self._size}; {self._advice()}"
            )
        return length

    def _advice(self) -> str:
        if self._offset == 0:
            return "this is not a TFRecord file, or was cut short: copy or write it anew"
        return "it was cut short: copy or write it anew, or pass on_error='skip' to do without its end"


# --------------------------------------------------------------------------- checksums


def checksum(data: bytes) -> int:
    """Return the checksum of some bytes.

    Example:
        >>> hex(checksum(b"123456789"))
        '0xc78ab0e5'
    """
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _ONES


def _record_checksums(
    buffer: bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint32]:
    value = google_crc32c.value
    parts = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return _masked(np.array([value(buffer[start:end]) for start, end in parts], np.uint32))


def length_checksums(lengths: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Return the checksums of lengths, each as eight little-endian bytes."""
    parts = (lengths.astype("<u8") ^ np.uint64(_ONES)).view(np.uint16).reshape(-1, 4)
    tables = _word_tables()
    crc = tables[0][parts[:, 0]]
    for part in range(1, 4):
        crc = crc ^ tables[part][parts[:, part]]
    return _masked(crc ^ np.uint32(_ONES))


@cache
def _word_tables() -> list[NDArray[np.uint32]]:
    """Return for each of four 16-bit words of a number what its values make of the CRC at the number's end."""
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, crc >> 1 ^ _POLYNOMIAL, crc >> 1).astype(np.uint32)
    by_byte = [crc]  # table k: what a byte makes of the CRC, k bytes later
    for _ in range(7):
        by_byte.append(by_byte[-1] >> 8 ^ crc[by_byte[-1] & 0xFF])
    words = np.arange(1 << 16)
    return [by_byte[7 - 2 * k][words & 0xFF] ^ by_byte[6 - 2 * k][words >> 8] for k in range(4)]


def _masked(crc: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(_MASK_DELTA)


def _numbers_at(buffer: bytes, positions: NDArray[np.int64], dtype: str) -> NDArray[np.generic]:
    """Return numbers that lie anywhere in a buffer, aligned or not."""
    width = np.dtype(dtype).itemsize
    return windows(np.frombuffer(buffer, np.uint8), width)[positions].view(dtype).reshape(-1)


def windows(raw: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Return all windows of `width` bytes, by their first byte; index with positions to copy those out as rows.

    Example:
        >>> windows(np.frombuffer(b"abcdef", np.uint8), 2)[[0, 3]].tobytes()
        b'abde'
    """
    return as_strided(raw, (max(0, len(raw) - width + 1), width), (1, 1), writeable=False)
