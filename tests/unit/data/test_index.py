"""Random access to records, and an index that is kept beside its file."""

import os
from pathlib import Path

import pytest

from stratagem.data import index_tfrecord, write_tfrecord
from stratagem.errors import DataError

RECORDS = [b"x" * (number % 7) for number in range(50)] + [b"same"] * 50


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_tfrecord(tmp_path / "records", RECORDS)
    return tmp_path / "records"


def test_random_access(path: Path) -> None:
    index = index_tfrecord(path)
    assert len(index) == 100
    assert [index[at] for at in range(-100, 100)] == RECORDS * 2
    assert list(index[10:60]) == RECORDS[10:60]
    assert list(index[60:10]) == []
    assert list(index) == RECORDS
    assert index[40:].where(2) == f"{path}, record at byte {index.offsets[42]}"
    with pytest.raises(IndexError, match="it has 100"):
        index[100]
    with pytest.raises(DataError, match="step 2"):
        index[::2]


def test_kept_until_the_file_changes(path: Path) -> None:
    beside = path.with_name("records.index.npz")
    index_tfrecord(path)
    assert not beside.exists()
    index_tfrecord(path, keep=True)
    kept = beside.read_bytes()
    # An index of another file in its place shows that it is used, and until when.
    found = path.stat()
    write_tfrecord(path.with_name("other"), RECORDS[::-1][:10])
    os.utime(path.with_name("other"), ns=(found.st_atime_ns, found.st_mtime_ns))
    assert list(index_tfrecord(path)) == RECORDS
    path.write_bytes(path.with_name("other").read_bytes())
    assert list(index_tfrecord(path)) == RECORDS[::-1][:10]
    assert beside.read_bytes() == kept
    index_tfrecord(path, keep=True)
    assert beside.read_bytes() != kept


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04nonsense"])
def test_a_damaged_index_is_made_anew(path: Path, content: bytes) -> None:
    path.with_name("records.index.npz").write_bytes(content)
    assert list(index_tfrecord(path)) == RECORDS


def test_a_kept_index_is_used(path: Path) -> None:
    index_tfrecord(path, keep=True)
    found = path.stat()
    path.write_bytes(b"\0" * found.st_size)  # nothing that could be indexed
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    index = index_tfrecord(path)
    assert len(index) == 100
    with pytest.raises(DataError, match="record at byte 0: wrong checksum"):
        index[0]


def test_a_file_that_changes_under_its_index(path: Path) -> None:
    index = index_tfrecord(path)
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(DataError, match="has changed since it was indexed"):
        index[0]


def test_files_without_places_to_jump_to(tmp_path: Path) -> None:
    path = tmp_path / "records"
    write_tfrecord(path, RECORDS, compression="gzip")
    with pytest.raises(DataError, match="is compressed with gzip"):
        index_tfrecord(path)
    write_tfrecord(path, RECORDS)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="leads beyond the end of the file"):
        index_tfrecord(path)
    path.write_bytes(b"")
    assert len(index_tfrecord(path)) == 0
