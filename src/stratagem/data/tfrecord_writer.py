"""Writes TFRecord files, plain or compressed; a file appears under its name when it is complete."""

import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from stratagem.data.compression import WINDOW_BITS, file_errors, parse_compression
from stratagem.data.tfrecord_frames import LONGEST_RECORD, OVERHEAD, frame_records
from stratagem.errors import DataError

_BUFFERED = 1 << 20


class TFRecordWriter:
    """Writes records one by one.

    The file is written under a temporary name beside its own, and gets its own when the `with` block ends well.

    Args:
        path: The file to write; an existing one is replaced.
        compression: None, "gzip" or "zlib".

    Example:
        >>> with TFRecordWriter("words.tfrecord") as writer:
        ...     writer.write(b"word")
    """

    def __init__(self, path: str | os.PathLike[str], *, compression: str | None = None) -> None:
        known = parse_compression(compression)
        self._path = Path(path)
        self._partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        self._deflater = None if known is None else zlib.compressobj(wbits=WINDOW_BITS[known])
        self._records: list[bytes] = []
        self._buffered_bytes = 0
        with file_errors(self._path, "write"):
            self._file = self._partial.open("wb")

    def write(self, record: bytes) -> None:
        """Append a record."""
        if not isinstance(record, bytes | bytearray | memoryview):
            raise DataError(
                f"a record is bytes, not {type(record).__name__}; `make_example` turns values into bytes"
            )
        data = bytes(record)
        if len(data) > LONGEST_RECORD:
            raise DataError(
                f"a record of {len(data)} bytes; the format's readers take {LONGEST_RECORD} at most"
            )
        self._records.append(data)
        self._buffered_bytes += len(data) + OVERHEAD  # counted, or empty records would never be written
        if self._buffered_bytes >= _BUFFERED:
            self._flush()

    def _flush(self) -> None:
        data = frame_records(self._records)
        self._records, self._buffered_bytes = [], 0
        self._put(data if self._deflater is None else self._deflater.compress(data))

    def _put(self, data: bytes) -> None:
        with file_errors(self._path, "write"):
            self._file.write(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            with file_errors(self._path, "write"), self._file:
                if error is None:
                    self._flush()
                    if self._deflater is not None:
                        self._put(self._deflater.flush())
            if error is None:
                with file_errors(self._path, "write"):
                    self._partial.replace(self._path)
        finally:
            self._partial.unlink(missing_ok=True)


def write_tfrecord(
    path: str | os.PathLike[str], records: Iterable[bytes], *, compression: str | None = None
) -> int:
    """Write records to a TFRecord file. Return how many they were.

    Args:
        path: The file to write; an existing one is replaced once the new one is complete.
        records: Bytes, such as `make_example` returns.
        compression: None, "gzip" or "zlib".

    Example:
        >>> from stratagem.data import make_example
        >>> write_tfrecord("squares.tfrecord", (make_example({"x": x, "y": x * x}) for x in range(10)))
        10
    """
    count = 0
    with TFRecordWriter(path, compression=compression) as writer:
        for record in records:
            writer.write(record)
            count += 1
    return count
