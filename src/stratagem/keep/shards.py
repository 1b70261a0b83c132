"""Shard files: named arrays that one process writes, in the safetensors format.

They are written and read in one pass, which also computes the digest: no second copy of a shard is ever in
memory. Bytes are little-endian, as on every machine that JAX runs on.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from stratagem.errors import KeepError
from stratagem.keep import header
from stratagem.keep.disk import explained, make_directory, new_file, write_all
from stratagem.keep.fields import shown
from stratagem.keep.naming import MANIFEST, shard_file_name
from stratagem.keep.records import DIGEST_BYTES, ShardRecord
from stratagem.keep.shard_file import CHUNK, open_shard
from stratagem.keep.stored import StoredArray
from stratagem.runtime.wire.arrays import Array, raw_view, sendable


def write_shard(
    directory: str | PathLike[str], name: str, tensors: Mapping[str, Any], *, durable: bool = True
) -> ShardRecord:
    """Write a shard of a cut; the file appears when it is complete, or never.

    Args:
        directory: The cut's directory, from `Cuts.directory`.
        name: The shard's name, one for each writer, such as `ps-0`.
        tensors: Arrays by key, of any dtype that JAX has. They must not change meanwhile.
        durable: Whether to wait until the file would survive a loss of power, not only of this process.

    Returns:
        What the manifest needs to know of it.

    Raises:
        KeepError: It cannot be written, or the cut is finished already.

    Example:
        >>> import tempfile
        >>> directory = tempfile.mkdtemp()
        >>> record = write_shard(directory, "ps-0", {"w": np.arange(3)})
        >>> read_shard(directory, record)
        {'w': array([0, 1, 2])}
    """
    path = Path(directory) / shard_file_name(name)
    with explained(path, "written"):
        if (path.parent / MANIFEST).exists():
            raise KeepError(
                f"{path.parent} is a finished cut, which {path.name} would damage; write into the directory of a "
                "later step, or remove this cut first"
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
    with explained(file, "written"):
        make_directory(file.parent, durable=True)
        _write(file, tensors, durable=True)


def map_file(path: str | PathLike[str]) -> dict[str, Array]:
    """The arrays of a safetensors file, read from it where and when they are looked at.

    Raises:
        KeepError: It cannot be read, or is no such file.
    """
    file = Path(path)
    with explained(file, "read"), file.open("rb") as opened:
        size = opened.seek(0, 2)
        opened.seek(0)
        prefix = opened.read(header.LENGTH.size)
        length = header.LENGTH.unpack(prefix)[0] if len(prefix) == header.LENGTH.size else size
        payload = size - header.LENGTH.size - length
        if length > header.LONGEST or payload < 0:
            raise KeepError(f"{file} is no safetensors file, or only a part of one")
        try:
            places = header.read(opened.read(length), payload)
        except KeepError as error:
            raise KeepError(f"{file} is damaged: {error}") from error
    return {key: _mapped(file, size - payload + place.start, place.array) for key, place in places.items()}


def _mapped(file: Path, offset: int, array: StoredArray) -> Array:
    if not array.nbytes:
        return np.empty(array.shape, array.element_type)
    return np.memmap(file, array.element_type, "r", offset, array.shape)


def _write(
    path: Path, tensors: Mapping[str, Any], *, durable: bool
) -> tuple[int, str, dict[str, StoredArray]]:
    """Its size, its digest and what it holds."""
    described = {key: _described(key, value) for key, value in tensors.items()}
    head, order = header.build(described)
    digest = blake2b(head, digest_size=DIGEST_BYTES)
    with explained(path, "written"), new_file(path, durable=durable) as file:
        write_all(file, memoryview(head))
        for key in order:
            # Made contiguous here, one at a time, and only those that are not.
            view = raw_view(sendable(tensors[key]))
            for start in range(0, len(view), CHUNK):
                part = view[start : start + CHUNK]
                digest.update(part)
                write_all(file, part)
        nbytes = file.tell()
    return nbytes, digest.hexdigest(), {key: described[key] for key in order}


def read_shard(
    directory: str | PathLike[str], record: ShardRecord, keys: Iterable[str] | None = None
) -> dict[str, Array]:
    """The arrays of a shard, after its size and digest have been found right.

    Args:
        directory: The cut's directory on this host.
        record: What the writer returned, or the manifest says.
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
                f"{record.file} has no array {shown(key)}; it has {shown(sorted(record.arrays))}: ask for those"
            )
    with open_shard(Path(directory), record) as shard:
        found = shard.read_checked(set(wanted))
    return {key: found[key] for key in wanted}


def verify_shard(directory: str | PathLike[str], record: ShardRecord) -> None:
    """Raise `KeepError` unless the file is there, with the size and digest of its record."""
    read_shard(directory, record, keys=())


def _described(key: str, value: Any) -> StoredArray:
    try:
        return StoredArray.of(np.asarray(value))
    except KeepError as error:
        raise KeepError(f"{shown(key)}: {error}") from error
