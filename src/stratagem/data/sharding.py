"""Which worker reads which files; where there are fewer files than workers, which records."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stratagem.errors import DataError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileShard:
    """One worker's part of some files; `read_tfrecord` takes it.

    Attributes:
        files: The files to read.
        num_shards: Of the records in them, take each one of so many,
        shard_index: beginning with this one.
    """

    files: tuple[Path, ...]
    num_shards: int = 1
    shard_index: int = 0


def shard_files(files: Sequence[str | os.PathLike[str]], num: int, index: int) -> FileShard:
    """Share files out among workers: whole files if there are enough, else the records of all of them.

    Every worker passes the same files in the same order. No record is read twice, and none is left out.

    Args:
        files: All files.
        num: How many workers there are.
        index: Which of them this is, from 0.

    Example:
        >>> [path.name for path in shard_files(["a", "b", "c"], num=2, index=0).files]
        ['a', 'c']
        >>> shard = shard_files(["a"], num=2, index=1)
        >>> len(shard.files), shard.num_shards, shard.shard_index
        (1, 2, 1)
    """
    if isinstance(files, str | os.PathLike):
        raise DataError(f"files={files!r} is one path; give a list, even of one")
    if num < 1 or not 0 <= index < num:
        raise DataError(f"worker {index} of {num}; give num >= 1 and 0 <= index < num")
    paths = tuple(Path(file) for file in files)
    if not paths:
        raise DataError("no files to share out; check the pattern they were looked for with")
    if len(paths) >= num:
        own = paths[index::num]
        _log.info("%d files for %d workers: worker %d reads %d whole files", len(paths), num, index, len(own))
        return FileShard(own)
    _log.info(
        "%d files for %d workers, fewer than workers: each reads all files and takes every %d-th record, "
        "worker %d from record %d on",
        len(paths), num, num, index, index,
    )  # fmt: skip
    return FileShard(paths, num, index)
