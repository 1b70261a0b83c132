"""Files shared out among workers: every record with one of them, whatever the numbers."""

import logging
from pathlib import Path

import pytest

from stratagem.data import read_tfrecord, shard_files, write_tfrecord
from stratagem.errors import DataError


@pytest.mark.parametrize("num_files", [1, 2, 3, 5])
@pytest.mark.parametrize("num", [1, 2, 4])
def test_every_record_once(tmp_path: Path, num_files: int, num: int) -> None:
    paths = [tmp_path / str(number) for number in range(num_files)]
    for path in paths:
        write_tfrecord(path, [f"{path.name}-{number}".encode() for number in range(9)])
    parts = [list(read_tfrecord(shard_files(paths, num, index))) for index in range(num)]
    assert all(parts)
    assert sorted(record for part in parts for record in part) == sorted(read_tfrecord(paths))


def test_says_what_was_done(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        shard_files(["a", "b", "c"], 2, 1)
        shard_files(["a"], 2, 1)
    assert "3 files for 2 workers: worker 1 reads 1 whole files" in caplog.messages[0]
    assert "fewer than workers: each reads all files and takes every 2-th record" in caplog.messages[1]


def test_wrong_arguments() -> None:
    with pytest.raises(DataError, match="worker 2 of 2"):
        shard_files(["a"], 2, 2)
    with pytest.raises(DataError, match="no files"):
        shard_files([], 2, 0)
    with pytest.raises(DataError, match="is one path"):
        shard_files("abc", 2, 0)
    with pytest.raises(DataError, match="already divided"):
        read_tfrecord(shard_files(["a"], 2, 0), num_shards=2)
