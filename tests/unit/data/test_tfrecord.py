"""TFRecord files: round trips, parts of files, and what is said of damaged ones."""

import gzip
import logging
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratagem.data import TFRecordWriter, read_tfrecord, write_tfrecord
from stratagem.data.tfrecord_frames import checksum
from stratagem.errors import DataError

COMPRESSIONS = [None, "gzip", "zlib"]
# One directory serves all examples of a property: each writes its file anew.
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def records_of_many_lengths(count: int) -> list[bytes]:
    source = random.Random(count)
    return [source.randbytes(source.choice([0, 1, 10, 10, 10, 100, 5000])) for _ in range(count)]


def header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", checksum(packed))


@pytest.mark.parametrize("compression", COMPRESSIONS)
@SHARED
@given(records=st.lists(st.binary(max_size=50), max_size=30), size=st.integers(1, 8))
def test_round_trip(tmp_path: Path, compression: str | None, records: list[bytes], size: int) -> None:
    path = tmp_path / "records"
    assert write_tfrecord(path, records, compression=compression) == len(records)
    reader = read_tfrecord(path)
    assert list(reader) == records
    assert list(reader) == records
    batches = [list(batch) for batch in reader.batches(size)]
    assert batches == [records[at : at + size] for at in range(0, len(records), size)]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_more_than_one_buffer(tmp_path: Path, compression: str | None) -> None:
    records = [*records_of_many_lengths(9000), random.Random(1).randbytes(6_000_000), b"", b"last"]
    path = tmp_path / "records"
    write_tfrecord(path, records, compression=compression)
    assert list(read_tfrecord(path)) == records
    assert [record for batch in read_tfrecord(path).batches(1000) for record in batch] == records
    assert list(read_tfrecord(path, verify=False)) == records


def test_batches_cross_files_and_know_where_each_record_is_from(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        write_tfrecord(path, [path.name.encode() * count for count in (1, 2, 3)])
    first, second = read_tfrecord(paths).batches(5)
    assert list(first) == [b"a", b"aa", b"aaa", b"b", b"bb"]
    assert list(second) == [b"bbb", b"c", b"cc", b"ccc"]
    assert first.where(2) == f"{paths[0]}, record at byte 35"
    assert first.where(3) == f"{paths[1]}, record at byte 0"
    assert second[1:].where(0) == f"{paths[2]}, record at byte 0"
    assert [len(batch) for batch in read_tfrecord(paths).batches(5, drop_remainder=True)] == [5]


def test_detection_does_not_need_a_name(tmp_path: Path) -> None:
    # 0x78 0x9c begins a zlib stream, and is also a length of 40,056.
    path = tmp_path / "wrong.gz"
    write_tfrecord(path, [bytes(0x9C78)])
    assert path.read_bytes()[:2] == b"\x78\x9c"
    assert [len(record) for record in read_tfrecord(path)] == [0x9C78]


def test_several_gzip_members_are_one_file(tmp_path: Path) -> None:
    parts = []
    for part in (b"one", b"two"):
        write_tfrecord(tmp_path / "part", [part])
        parts.append(gzip.compress((tmp_path / "part").read_bytes()))
    (tmp_path / "both").write_bytes(b"".join(parts))
    assert list(read_tfrecord(tmp_path / "both")) == [b"one", b"two"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_shards_are_all_records_once(tmp_path: Path, compression: str | None) -> None:
    records = [str(number).encode() for number in range(100)]
    paths = [tmp_path / "a", tmp_path / "b"]
    write_tfrecord(paths[0], records[:33], compression=compression)
    write_tfrecord(paths[1], records[33:], compression=compression)
    shards = [list(read_tfrecord(paths, num_shards=7, shard_index=index)) for index in range(7)]
    assert shards == [records[index::7] for index in range(7)]
    for first, stop in [(0, 0), (0, 10), (20, 40), (33, 50), (90, 200), (150, 160)]:
        assert list(read_tfrecord(paths, records=range(first, stop))) == records[first:stop]
    chosen = read_tfrecord(paths, records=range(10, 50), num_shards=3, shard_index=1)
    assert list(chosen) == [record for record in records[10:50] if int(record) % 3 == 1]


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert list(read_tfrecord(tmp_path / "empty")) == []
    assert list(read_tfrecord(tmp_path / "empty").batches(3)) == []


def test_damaged_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "damaged"
    write_tfrecord(path, [b"first", b"second", b"third"])
    data = bytearray(path.read_bytes())
    data[21 + 12] ^= 1
    path.write_bytes(data)
    reader = iter(read_tfrecord(path))
    assert next(reader) == b"first"
    with pytest.raises(DataError, match=r"damaged, record at byte 21: wrong checksum of its data"):
        next(reader)
    skipping = read_tfrecord(path, on_error="skip")
    with caplog.at_level(logging.WARNING):
        assert list(skipping) == [b"first", b"third"]
    assert skipping.skipped == 1
    assert "record at byte 21" in caplog.text
    assert list(read_tfrecord(path, verify=False))[1] != b"second"
    whole = read_tfrecord(path, num_shards=2, shard_index=0)
    assert list(whole) == [b"first", b"third"], "a record of another shard is nobody's trouble here"


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_what_lies_before_damage_in_a_compressed_file_is_read(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "damaged"
    random = np.random.default_rng(0)
    records = [
        random.bytes(1000) for _ in range(200)
    ]  # which cannot be made smaller: each is where it would be
    write_tfrecord(path, records, compression=compression)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = b"\xff" * (len(data) - len(data) // 2)
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"damaged.*(after|at byte) \d+"):
        list(read_tfrecord(path))
    skipping = read_tfrecord(path, on_error="skip")
    found = list(skipping)
    assert found == records[: len(found)]
    assert len(found) > 60
    assert skipping.skipped >= 1


def test_a_range_of_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    write_tfrecord(path, [b"first", b"second", b"third"])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="leads beyond the end"):
        list(read_tfrecord(path, records=range(1, 3)))
    assert list(read_tfrecord(path, records=range(1, 3), on_error="skip")) == [b"second"]


def test_damaged_length_gives_up_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    write_tfrecord(path, [b"first", b"second", b"third"])
    data = bytearray(path.read_bytes())
    data[21] ^= 1
    path.write_bytes(data)
    reader = iter(read_tfrecord(path))
    assert next(reader) == b"first"
    with pytest.raises(DataError, match=r"record at byte 21: wrong checksum of the length.*on_error='skip'"):
        next(reader)
    other = tmp_path / "other"
    write_tfrecord(other, [b"fourth"])
    skipping = read_tfrecord([path, other], on_error="skip")
    assert list(skipping) == [b"first", b"fourth"]
    assert skipping.skipped == 1


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_cut_short_anywhere(tmp_path: Path, compression: str | None) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    write_tfrecord(whole, [b"first", b"second"], compression=compression)
    data = whole.read_bytes()
    for length in range(1, len(data)):
        if compression is None and length == 21:
            continue
        part.write_bytes(data[:length])
        with pytest.raises(DataError, match="part"):
            list(read_tfrecord(part, compression=compression))
        skipping = read_tfrecord(part, compression=compression, on_error="skip")
        assert list(skipping) in ([], [b"first"], [b"first", b"second"])
        assert skipping.skipped == 1


def test_a_huge_length_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    for compress in (bytes, zlib.compress):
        path.write_bytes(compress(header(1 << 31) + b"data"))
        with pytest.raises(DataError, match=r"byte 0: announces 2147483648 bytes; a record has at most"):
            list(read_tfrecord(path))
    path.write_bytes(header((1 << 31) - 1) + b"data")
    with pytest.raises(DataError, match="but the file ends at byte 16"):
        list(read_tfrecord(path))
    path.write_bytes(zlib.compress(header((1 << 31) - 1) + b"data"))
    with pytest.raises(DataError, match="only 16 bytes follow"):
        list(read_tfrecord(path))


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n" + bytes(50), b"name,label\n" * 5, b"short"])
def test_other_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(DataError, match="this is not a TFRecord file"):
        list(read_tfrecord(tmp_path / "other"))


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*missing: No such file"):
        list(read_tfrecord(tmp_path / "missing"))
    with pytest.raises(DataError, match="cannot read"):
        list(read_tfrecord(tmp_path))
    with pytest.raises(DataError, match=r"cannot write .*No such file"):
        write_tfrecord(tmp_path / "no" / "where", [])
    with pytest.raises(DataError, match="compression='snappy' is not known; give 'gzip', 'zlib', or None"):
        read_tfrecord("x", compression="snappy")
    with pytest.raises(DataError, match="shard 2 of 2"):
        read_tfrecord("x", num_shards=2, shard_index=2)
    with pytest.raises(DataError, match="consecutive"):
        read_tfrecord("x", records=range(0, 10, 2))
    with pytest.raises(DataError, match="give 'raise' or 'skip'"):
        read_tfrecord("x", on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="at least 1"):
        list(read_tfrecord("x").batches(0))


def test_an_unfinished_file_never_shows(tmp_path: Path) -> None:
    path = tmp_path / "records"
    write_tfrecord(path, [b"old"])
    with pytest.raises(DataError, match="not str"), TFRecordWriter(path) as writer:
        writer.write(b"new")
        writer.write("text")  # type: ignore[arg-type]
    assert list(read_tfrecord(path)) == [b"old"]
    assert list(tmp_path.iterdir()) == [path]


@SHARED
@given(content=st.binary(max_size=300), data=st.data())
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, data: st.DataObject) -> None:
    path = tmp_path / "any"
    verify = data.draw(st.booleans())
    start = data.draw(
        st.sampled_from([b"", header(5), header(0), header(2**40), b"\x1f\x8b\x08\0", b"\x78\x9c"])
    )
    path.write_bytes(start + content)
    for on_error in ("raise", "skip"):
        try:
            found = list(read_tfrecord(path, on_error=on_error, verify=verify))
        except DataError as error:
            assert on_error == "raise"
            assert str(path) in str(error)
        else:
            assert sum(map(len, found)) <= 300 or start[:2] in (b"\x1f\x8b", b"\x78\x9c")


@SHARED
@given(flips=st.lists(st.integers(0, 8 * 400), min_size=1, max_size=3, unique=True), data=st.data())
def test_no_flipped_bit_goes_unnoticed(tmp_path: Path, flips: list[int], data: st.DataObject) -> None:
    records = data.draw(st.lists(st.binary(max_size=40), min_size=1, max_size=8))
    path = tmp_path / "flipped"
    write_tfrecord(path, records)
    content = np.frombuffer(path.read_bytes(), np.uint8).copy()
    for flip in {flip % (8 * len(content)) for flip in flips}:
        content[flip // 8] ^= 1 << flip % 8
    path.write_bytes(content.tobytes())
    with pytest.raises(DataError):
        list(read_tfrecord(path, compression=None))
