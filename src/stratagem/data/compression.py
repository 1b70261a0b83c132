"""Files as streams of plain bytes. Their first bytes tell whether they are compressed with gzip, zlib or not."""

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from stratagem.data.tfrecord_frames import HEADER, ByteStream, announced_length
from stratagem.errors import DataError

Compression = Literal["gzip", "zlib"]
WINDOW_BITS: dict[Compression, int] = {"gzip": 31, "zlib": 15}
"""The number by which zlib knows each compression."""

_SUFFIXES: dict[str, Compression] = {".gz": "gzip", ".gzip": "gzip", ".zlib": "zlib", ".zz": "zlib"}
_GZIP_MAGIC = b"\x1f\x8b"
_READ = 1 << 18


@contextmanager
def file_errors(path: Path, verb: str) -> Iterator[None]:
    """Turn an `OSError` inside into a `DataError` that names the file and what could not be done to it."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot {verb} {path}: {error.strerror or error}; check the path, its permissions and the disk"
        ) from error


@contextmanager
def open_unbuffered(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading without a buffer: each read is a read of the operating system."""
    with file_errors(path, "read"), path.open("rb", buffering=0) as file:
        yield cast(BinaryIO, file)


def parse_compression(name: str | None) -> Compression | None:
    """Return a compression by its name, in TensorFlow's spelling or ours; None and "" mean none."""
    known: dict[str, Compression | None] = {"": None, "gzip": "gzip", "zlib": "zlib"}
    if not isinstance(name, str | None) or (name or "").lower() not in known:
        raise DataError(f"compression={name!r} is not known; give 'gzip', 'zlib', or None for none")
    return known[(name or "").lower()]


def detect_compression(path: Path, beginning: bytes) -> Compression | None:
    """Return the compression of a TFRecord file, from its first bytes, or from its suffix if they do not tell.

    A plain file is recognized by the checksum of its first length, which no other file has by chance.
    """
    if len(beginning) >= HEADER and announced_length(beginning) is not None:
        return None
    if beginning.startswith(_GZIP_MAGIC):
        return "gzip"
    if len(beginning) >= 2 and beginning[0] & 0x0F == 8 and int.from_bytes(beginning[:2]) % 31 == 0:
        return "zlib"
    return _SUFFIXES.get(path.suffix.lower()) if beginning else None


def is_gzip(beginning: bytes) -> bool:
    """Return whether a file with this beginning is compressed with gzip."""
    return beginning.startswith(_GZIP_MAGIC)


class InflatedStream(ByteStream):
    """A compressed file as plain bytes; several gzip members, one after the other, are one stream.

    Args:
        file: The compressed bytes.
        compression: Their compression.
        name: The name of the file in errors.
    """

    def __init__(self, file: ByteStream, compression: Compression, name: str | os.PathLike[str]) -> None:
        self._file, self._compression, self._name = file, compression, name
        self._pending = b""
        self._inflater = zlib.decompressobj(WINDOW_BITS[compression])
        self._is_fresh = True
        self._plain_bytes = 0
        self._damage: zlib.error | None = None

    def read(self, count: int) -> bytes:
        """Return at most `count` plain bytes; none at the end. Bytes before damage are returned before it is raised."""
        plain = self._read(count)
        self._plain_bytes += len(plain)
        return plain

    def _read(self, count: int) -> bytes:
        while True:
            if self._damage is not None:
                raise DataError(
                    f"{self._name}: damaged {self._compression} data after {self._plain_bytes} plain bytes ({self._damage}); "
                    f"the file is not {self._compression}, or was changed: copy or write it anew"
                ) from self._damage
            if not self._pending:
                self._pending = self._file.read(_READ)
                if not self._pending:
                    return self._at_end()
            if self._inflater.eof:
                self._pending = self._pending.lstrip(b"\0")  # gzip allows padding between members
                if not self._pending:
                    continue
                self._inflater = zlib.decompressobj(WINDOW_BITS[self._compression])
            before = self._inflater.copy()
            try:
                plain = self._inflater.decompress(self._pending, count)
            except zlib.error as error:
                self._damage = error
                if sound := _until_damage(before, self._pending):
                    return sound
                continue
            self._is_fresh = False
            self._pending = (
                self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail
            )
            if plain:
                return plain

    def _at_end(self) -> bytes:
        if self._inflater.eof or self._is_fresh:
            return b""
        plain = self._inflater.flush()
        if plain or self._inflater.eof:
            return plain
        raise DataError(
            f"{self._name}: the {self._compression} data ends too early, after {self._plain_bytes} plain bytes; the file was cut "
            "short: copy or write it anew"
        )


def _until_damage(inflater: Any, data: bytes) -> bytes:
    """Inflate data up to its damage, byte by byte: a call that fails returns nothing at all."""
    plain = []
    for index in range(len(data)):
        try:
            plain.append(inflater.decompress(data[index : index + 1]))
        except zlib.error:
            break
    return b"".join(plain)
