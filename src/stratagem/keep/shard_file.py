"""A shard file that is open for reading: its head checked against its record, its arrays read in place."""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from io import FileIO
from pathlib import Path

from stratagem.errors import KeepError, LimitExceeded, ProtocolError
from stratagem.keep import header
from stratagem.keep.disk import explained, fill
from stratagem.keep.header import Place
from stratagem.keep.records import DIGEST_BYTES, ShardRecord
from stratagem.keep.stored import StoredArray
from stratagem.runtime.wire import empty_aligned
from stratagem.runtime.wire.arrays import Array, raw_view

CHUNK = 1 << 20
"""Bytes that are read or written, and digested, at a time: what fits a core's cache is fetched only once."""

_ADVICE = "use another cut; if there is no other, bring the file back from a copy"


def allocate(array: StoredArray) -> Array:
    """Memory for it, writable and aligned for XLA; `KeepError` if there is not enough."""
    try:
        return empty_aligned(array.element_type, array.shape, array.nbytes)
    except (LimitExceeded, ProtocolError) as error:
        raise KeepError(
            f"no memory for {array}, {array.nbytes} bytes: {error}; read fewer rows at a time"
        ) from error


class ShardFile:
    """A shard file whose size and head are those of its record."""

    def __init__(self, path: Path, file: FileIO, record: ShardRecord) -> None:
        self._path = path
        self._file = file
        self._record = record
        self._head, self.places = self._read_head()

    def _read_head(self) -> tuple[bytes, dict[str, Place]]:
        size = self._file.seek(0, 2)
        if size != self._record.nbytes:
            raise self._damaged(f"{size} bytes long", f"{self._record.nbytes}")
        prefix = self._take(0, header.LENGTH.size)
        (length,) = header.LENGTH.unpack(prefix)
        payload = size - header.LENGTH.size - length
        if length > header.LONGEST or payload < 0:
            raise self._damaged(f"a file that claims a head of {length} bytes", f"at most {size} in all")
        text = self._take(header.LENGTH.size, length)
        try:
            places = header.read(text, payload)
        except KeepError as error:
            raise KeepError(f"{self._path} is damaged: {error}; {_ADVICE}") from error
        if {key: place.array for key, place in places.items()} != dict(self._record.arrays):
            raise self._damaged("one with other arrays", f"the {len(self._record.arrays)} of its record")
        return prefix + text, places

    def read_rows(self, key: str, start: int, target: Array) -> None:
        """Fill `target`, which is contiguous, with the rows of an array from `start` on."""
        place = self.places[key]
        self._seek(place, start * place.array.row_nbytes)
        view = raw_view(target)
        if fill(self._file, view) < len(view):
            raise self._damaged("shorter than a moment ago", f"{self._record.nbytes} bytes long")

    def read_checked(self, keys: set[str]) -> dict[str, Array]:
        """These arrays, in one pass over the whole file that also checks its digest."""
        digest = blake2b(self._head, digest_size=DIGEST_BYTES)
        found = {}
        # Each thread that has read a shard keeps what this took in an arena of its own: no more than there is to pass over.
        others = (place.array.nbytes for key, place in self.places.items() if key not in keys)
        scratch = memoryview(bytearray(min(CHUNK, max(others, default=0))))
        self._file.seek(len(self._head))
        for key, place in self.places.items():
            target = allocate(place.array) if key in keys else None
            view = None if target is None else raw_view(target)
            for start in range(0, place.array.nbytes, CHUNK):
                size = min(CHUNK, place.array.nbytes - start)
                part = scratch[:size] if view is None else view[start : start + size]
                if fill(self._file, part) < size:
                    raise self._damaged("shorter than a moment ago", f"{self._record.nbytes} bytes long")
                digest.update(part)
            if target is not None:
                found[key] = target
        if digest.hexdigest() != self._record.digest:
            raise self._damaged(f"a file with the digest {digest.hexdigest()}", self._record.digest)
        return found

    def _seek(self, place: Place, offset: int) -> None:
        self._file.seek(len(self._head) + place.start + offset)

    def _take(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        data = bytearray(size)
        if fill(self._file, memoryview(data)) < size:
            raise self._damaged("shorter than a moment ago", f"{self._record.nbytes} bytes long")
        return bytes(data)

    def _damaged(self, found: str, expected: str) -> KeepError:
        return KeepError(f"{self._path} is damaged: it is {found}, its record says {expected}; {_ADVICE}")


@contextmanager
def open_shard(directory: Path, record: ShardRecord) -> Iterator[ShardFile]:
    """The file of a record, open; `KeepError` if it is missing or is another one at first sight."""
    path = directory / record.file
    with explained(path, "read"), path.open("rb", buffering=0) as file:
        yield ShardFile(path, file, record)
