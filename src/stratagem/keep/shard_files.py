"""Shard files: named arrays that one process writes, in the safetensors format, and their checked reading.

They are written and read in one pass, which also computes the digest: no second copy of a shard is ever in
memory. Bytes are little-endian, as on every machine that JAX runs on.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from io import FileIO
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from stratagem.errors import KeepError, LimitExceeded, ProtocolError
from stratagem.keep.checked_json import excerpt
from stratagem.keep.disk import (
    MANIFEST,
    explain_errors,
    fill,
    make_directory,
    new_file,
    shard_file_name,
    write_all,
)
from stratagem.keep.records import DIGEST_BYTES, ShardRecord, StoredArray
from stratagem.keep.safetensors import LENGTH, LONGEST, ArrayOffset, build_head, read_head
from stratagem.runtime.wire import empty_aligned
from stratagem.runtime.wire.arrays import Array, raw_view, sendable

CHUNK = 1 << 20
"""Bytes that are read or written, and digested, at a time: they stay in a core's cache between the two."""
_ADVICE = "use another snapshot; if there is no other, bring the file back from a copy"


def write_shard(
    directory: str | PathLike[str], name: str, tensors: Mapping[str, Any], *, durable: bool = True
) -> ShardRecord:
    """Write a shard of a snapshot; the file appears when it is complete, or never.

    Args:
        directory: The snapshot's directory, from `Snapshots.directory`.
        name: The shard's name, one for each writer, such as `ps-0`.
        tensors: Arrays by key, of any dtype that JAX has. They must not change meanwhile.
        durable: Whether to wait until the file would survive a loss of power, not only of this process.

    Returns:
        The shard's record, for the manifest.

    Raises:
        KeepError: It cannot be written, or the snapshot is already finished.

    Example:
        >>> import tempfile
        >>> directory = tempfile.mkdtemp()
        >>> record = write_shard(directory, "ps-0", {"w": np.arange(3)})
        >>> read_shard(directory, record)
        {'w': array([0, 1, 2])}
    """
    path = Path(directory) / shard_file_name(name)
    with explain_errors(path, "written"):
        if (path.parent / MANIFEST).exists():
            raise KeepError(
                f"{path.parent} is a finished snapshot, which {path.name} would damage; write into the directory of a "
                "later step, or remove this snapshot first"
            )
    return ShardRecord(path.name, *_write(path, tensors, durable=durable))


def write_file(path: str | PathLike[str], tensors: Mapping[str, Any]) -> None:
    """Write arrays to a safetensors file of any name, for others to read; it appears when it is complete, or never.

    A dtype that the format lacks is stored as bytes, as in a shard.

    Args:
        path: The file; one that is there already is replaced. Directories are made where they are missing.
        tensors: Arrays by key, of any dtype that JAX has.

    Raises:
        KeepError: It cannot be written.
    """
    file = Path(path)
    with explain_errors(file, "written"):
        make_directory(file.parent, durable=True)
        _write(file, tensors, durable=True)


def map_file(path: str | PathLike[str]) -> dict[str, Array]:
    """Return the arrays of a safetensors file, which are read from it where and when they are used.

    Raises:
        KeepError: It cannot be read, or is not such a file.
    """
    file = Path(path)
    with explain_errors(file, "read"), file.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        prefix = stream.read(LENGTH.size)
        length = LENGTH.unpack(prefix)[0] if len(prefix) == LENGTH.size else size
        payload = size - LENGTH.size - length
        if length > LONGEST or payload < 0:
            raise KeepError(f"{file} is not a safetensors file, or only a part of one")
        try:
            offsets = read_head(stream.read(length), payload)
        except KeepError as error:
            raise KeepError(f"{file} is damaged: {error}") from error
    return {key: _map_array(file, size - payload + each.start, each.array) for key, each in offsets.items()}


def _map_array(file: Path, offset: int, array: StoredArray) -> Array:
    if not array.nbytes:
        return np.empty(array.shape, array.element_type)
    return np.memmap(file, array.element_type, "r", offset, array.shape)


def _write(
    path: Path, tensors: Mapping[str, Any], *, durable: bool
) -> tuple[int, str, dict[str, StoredArray]]:
    """Write a file. Return its size, its digest and its arrays."""
    arrays = {key: _describe(key, value) for key, value in tensors.items()}
    head, order = build_head(arrays)
    digest = blake2b(head, digest_size=DIGEST_BYTES)
    with explain_errors(path, "written"), new_file(path, durable=durable) as file:
        write_all(file, memoryview(head))
        for key in order:
            # Made contiguous here, one at a time, and only those that are not.
            view = raw_view(sendable(tensors[key]))
            for start in range(0, len(view), CHUNK):
                part = view[start : start + CHUNK]
                digest.update(part)
                write_all(file, part)
        nbytes = file.tell()
    return nbytes, digest.hexdigest(), {key: arrays[key] for key in order}


def read_shard(
    directory: str | PathLike[str], record: ShardRecord, keys: Iterable[str] | None = None
) -> dict[str, Array]:
    """Return the arrays of a shard, after checking its size and digest.

    Args:
        directory: The snapshot's directory on this host.
        record: The shard's record, from its writer or the manifest.
        keys: Which arrays; all by default. The whole file is checked in any case.

    Returns:
        New arrays, writable and aligned for XLA, in the order of `keys` or of the file.

    Raises:
        KeepError: The file is missing or damaged, or has no such key.
    """
    wanted = list(record.arrays) if keys is None else list(keys)
    for key in wanted:
        if key not in record.arrays:
            raise KeepError(
                f"{record.file} has no array {excerpt(key)}; it has {excerpt(sorted(record.arrays))}: ask for those"
            )
    with open_shard(Path(directory), record) as shard:
        arrays = shard.read_checked(set(wanted))
    return {key: arrays[key] for key in wanted}


def verify_shard(directory: str | PathLike[str], record: ShardRecord) -> None:
    """Raise `KeepError` unless the file exists, with the size and digest of its record."""
    read_shard(directory, record, keys=())


def _describe(key: str, value: Any) -> StoredArray:
    try:
        return StoredArray.of(np.asarray(value))
    except KeepError as error:
        raise KeepError(f"{excerpt(key)}: {error}") from error


def allocate(array: StoredArray) -> Array:
    """Return memory for an array, writable and aligned for XLA; `KeepError` if there is not enough."""
    try:
        return empty_aligned(array.element_type, array.shape, array.nbytes)
    except (LimitExceeded, ProtocolError) as error:
        raise KeepError(
            f"not enough memory for {array}, {array.nbytes} bytes: {error}; read fewer rows at a time"
        ) from error


class ShardFile:
    """A shard file that is open for reading. Its size and head are those of its record."""

    def __init__(self, path: Path, file: FileIO, record: ShardRecord) -> None:
        self._path = path
        self._file = file
        self._record = record
        self._head, self._offsets = self._read_head()

    def _read_head(self) -> tuple[bytes, dict[str, ArrayOffset]]:
        size = self._file.seek(0, 2)
        if size != self._record.nbytes:
            raise self._damaged(f"{size} bytes long", f"{self._record.nbytes}")
        prefix = self._read_bytes(0, LENGTH.size)
        (length,) = LENGTH.unpack(prefix)
        payload = size - LENGTH.size - length
        if length > LONGEST or payload < 0:
            raise self._damaged(f"a file that claims a head of {length} bytes", f"at most {size} in all")
        text = self._read_bytes(LENGTH.size, length)
        try:
            offsets = read_head(text, payload)
        except KeepError as error:
            raise KeepError(f"{self._path} is damaged: {error}; {_ADVICE}") from error
        if {key: each.array for key, each in offsets.items()} != dict(self._record.arrays):
            raise self._damaged("one with other arrays", f"the {len(self._record.arrays)} of its record")
        return prefix + text, offsets

    def read_rows(self, key: str, start: int, target: Array) -> None:
        """Fill `target`, which is contiguous, with the rows of an array from `start` on."""
        position = self._offsets[key]
        self._file.seek(len(self._head) + position.start + start * position.array.row_nbytes)
        view = raw_view(target)
        if fill(self._file, view) < len(view):
            raise self._damaged("shorter than a moment ago", f"{self._record.nbytes} bytes long")

    def read_checked(self, keys: set[str]) -> dict[str, Array]:
        """Return some arrays, in one pass over the whole file that also checks its digest."""
        digest = blake2b(self._head, digest_size=DIGEST_BYTES)
        arrays = {}
        # Each thread that has read a shard keeps this memory in an arena of its own: no more than the skipped arrays need.
        others = (each.array.nbytes for key, each in self._offsets.items() if key not in keys)
        scratch = memoryview(bytearray(min(CHUNK, max(others, default=0))))
        self._file.seek(len(self._head))
        for key, (array, _) in self._offsets.items():
            target = allocate(array) if key in keys else None
            view = None if target is None else raw_view(target)
            for start in range(0, array.nbytes, CHUNK):
                size = min(CHUNK, array.nbytes - start)
                part = scratch[:size] if view is None else view[start : start + size]
                if fill(self._file, part) < size:
                    raise self._damaged("shorter than a moment ago", f"{self._record.nbytes} bytes long")
                digest.update(part)
            if target is not None:
                arrays[key] = target
        if digest.hexdigest() != self._record.digest:
            raise self._damaged(f"a file with the digest {digest.hexdigest()}", self._record.digest)
        return arrays

    def _read_bytes(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        data = bytearray(size)
        if fill(self._file, memoryview(data)) < size:
            raise self._damaged("shorter than a moment ago", f"{self._record.nbytes} bytes long")
        return bytes(data)

    def _damaged(self, actual: str, expected: str) -> KeepError:
        return KeepError(f"{self._path} is damaged: it is {actual}, its record says {expected}; {_ADVICE}")


@contextmanager
def open_shard(directory: Path, record: ShardRecord) -> Iterator[ShardFile]:
    """Open the file of a record; `KeepError` if it is missing, or its size or head is not that of the record."""
    path = directory / record.file
    with explain_errors(path, "read"), path.open("rb", buffering=0) as file:
        yield ShardFile(path, file, record)
