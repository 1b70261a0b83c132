"""Whole frames from a stream of bytes, a buffer at a time, however large a single record is."""

from collections.abc import Iterator
from typing import NamedTuple

from stratagem.data.compression import Stream
from stratagem.data.framing import (
    HEADER,
    LONGEST_RECORD,
    OVERHEAD,
    Frames,
    announced_length,
    hop,
    sound_headers,
)
from stratagem.errors import DataError

_CHUNK = 1 << 22


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
    """Reads frames until the stream ends; anything but an end after a whole frame is an error.

    Args:
        stream: Where the bytes come from.
        source: How errors name it; an attribute too.
        offset: How many bytes of it lie before the first that is read.
        size: How many bytes it has, if that is known.
        verify: Whether to compare the checksums of lengths.
    """

    def __init__(self, stream: Stream, source: str, offset: int, size: int | None, verify: bool) -> None:
        self._stream, self.source, self._size = stream, source, size
        self._offset = offset
        self._verifies = verify

    def __iter__(self) -> Iterator[FramedBuffer]:
        rest = b""
        while buffer := self._more(rest):
            frames = hop(buffer)
            if self._verifies:
                # A wrong length leads astray, so what was found behind it does not count.
                frames = frames.first(sound_headers(buffer, frames))
            if len(frames.positions):
                yield FramedBuffer(buffer, frames, self._offset)
            rest = buffer[frames.end :]
            self._offset += frames.end

    def _more(self, rest: bytes) -> bytes:
        """The rest and what follows it: at least one whole frame, or nothing at the end."""
        parts, have = [rest], len(rest)
        need: int | None = None
        while True:
            if need is None and have >= HEADER:
                parts = [b"".join(parts)]
                need = OVERHEAD + self._length(parts[0])
            if need is not None and have >= need:
                return b"".join(parts)
            # Memory is taken as bytes come, not as a length announces them.
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
        """The length of the record that begins here, if it can be one."""
        length = announced_length(header)
        place = f"{self.source}, record at byte {self._offset}"
        if length is None and (self._verifies or self._offset == 0):
            what = (
                "this is no TFRecord file, or not with this compression"
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
            return "this is no TFRecord file, or was cut short: copy or write it anew"
        return "it was cut short: copy or write it anew, or pass on_error='skip' to do without its end"
