"""TFRecord files and Examples: TensorFlow reads what we write, and we read what TensorFlow writes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratagem.data import (
    FixedLenFeature,
    RawFeature,
    VarLenFeature,
    make_example,
    parse_example,
    read_tfrecord,
    write_tfrecord,
)
from stratagem.data.features import Feature
from stratagem.errors import DataError

tf = pytest.importorskip("tensorflow")

COMPRESSIONS = [("", None), ("GZIP", "gzip"), ("ZLIB", "zlib")]
RECORDS = st.lists(st.binary(max_size=100), max_size=20)
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(width=32, allow_nan=False)
VALUES: dict[str, st.SearchStrategy[list[Any]]] = {
    "bytes": st.lists(st.binary(max_size=200), max_size=4),
    "floats": st.lists(FLOAT, max_size=5),
    "integers": st.lists(INT64, max_size=5),
}
EXAMPLES = st.lists(st.fixed_dictionaries({}, optional=VALUES), min_size=1, max_size=8)
OURS: dict[str, Feature] = {
    "bytes": VarLenFeature(bytes),
    "floats": VarLenFeature(np.float32),
    "integers": VarLenFeature(np.int64),
}


def by_tensorflow(values: dict[str, list[Any]]) -> bytes:
    kinds = {
        "bytes": lambda each: tf.train.Feature(bytes_list=tf.train.BytesList(value=each)),
        "floats": lambda each: tf.train.Feature(float_list=tf.train.FloatList(value=each)),
        "integers": lambda each: tf.train.Feature(int64_list=tf.train.Int64List(value=each)),
    }
    feature = {name: kinds[name](each) for name, each in values.items()}
    serialized: bytes = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
    return serialized


@pytest.mark.parametrize(("theirs", "ours"), COMPRESSIONS)
@SHARED
@given(records=RECORDS)
def test_we_read_theirs(tmp_path: Path, theirs: str, ours: str | None, records: list[bytes]) -> None:
    path = tmp_path / "theirs"
    with tf.io.TFRecordWriter(str(path), options=theirs) as writer:
        for record in records:
            writer.write(record)
    assert list(read_tfrecord(path)) == records
    assert list(read_tfrecord(path, compression=theirs)) == records
    assert list(read_tfrecord(path, compression=ours)) == records


@pytest.mark.parametrize(("theirs", "ours"), COMPRESSIONS)
@SHARED
@given(records=RECORDS)
def test_they_read_ours(tmp_path: Path, theirs: str, ours: str | None, records: list[bytes]) -> None:
    path = tmp_path / "ours"
    write_tfrecord(path, records, compression=ours)
    found = [record.numpy() for record in tf.data.TFRecordDataset(str(path), compression_type=theirs)]
    assert found == records


def test_plain_files_are_the_same_bytes(tmp_path: Path) -> None:
    records = [b"x" * length for length in (0, 1, 100, 100, 100, 70_000)]
    write_tfrecord(tmp_path / "ours", records)
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for record in records:
            writer.write(record)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@SHARED
@given(EXAMPLES)
def test_we_parse_theirs(examples: list[dict[str, list[Any]]]) -> None:
    parsed = parse_example([by_tensorflow(example) for example in examples], OURS)
    for name in VALUES:
        assert [row.tolist() for row in parsed[name]] == [example.get(name, []) for example in examples]


@SHARED
@given(EXAMPLES)
def test_they_parse_ours(examples: list[dict[str, list[Any]]]) -> None:
    for example in examples:
        found = tf.train.Example.FromString(make_example(example)).features.feature
        values = {
            "bytes": lambda feature: list(feature.bytes_list.value),
            "floats": lambda feature: list(feature.float_list.value),
            "integers": lambda feature: list(feature.int64_list.value),
        }
        assert {name: values[name](found[name]) for name in example} == example
        assert set(found) == set(example)


@SHARED
@given(EXAMPLES)
def test_variable_lengths_as_tensorflow_parses_them(examples: list[dict[str, list[Any]]]) -> None:
    serialized = [by_tensorflow(example) for example in examples]
    theirs = tf.io.parse_example(
        serialized,
        {
            "bytes": tf.io.VarLenFeature(tf.string),
            "floats": tf.io.VarLenFeature(tf.float32),
            "integers": tf.io.VarLenFeature(tf.int64),
        },
    )
    ours = parse_example(serialized, OURS)
    for name in VALUES:
        np.testing.assert_array_equal(ours[name].values, theirs[name].values.numpy())
        rows = np.repeat(np.arange(len(examples)), ours[name].row_lengths)
        np.testing.assert_array_equal(rows, theirs[name].indices.numpy()[:, 0])


@SHARED
@given(st.data())
def test_fixed_lengths_as_tensorflow_parses_them(data: st.DataObject) -> None:
    examples = [
        {
            name: data.draw(st.lists(each, min_size=2, max_size=2))
            for name, each in (("bytes", st.binary(max_size=9)), ("floats", FLOAT), ("integers", INT64))
            if data.draw(st.booleans())
        }
        for _ in range(data.draw(st.integers(1, 6)))
    ]
    serialized = [by_tensorflow(example) for example in examples]
    theirs = tf.io.parse_example(
        serialized,
        {
            "bytes": tf.io.FixedLenFeature([2], tf.string, ["a", "b"]),
            "floats": tf.io.FixedLenFeature([2, 1], tf.float32, [[1.0], [2.0]]),
            "integers": tf.io.FixedLenFeature([1, 2], tf.int64, [[3, 4]]),
        },
    )
    ours = parse_example(
        serialized,
        {
            "bytes": FixedLenFeature((2,), bytes, ["a", "b"]),
            "floats": FixedLenFeature((2, 1), np.float32, [[1.0], [2.0]]),
            "integers": FixedLenFeature((1, 2), np.int64, [[3, 4]]),
        },
    )
    for name, values in ours.items():
        np.testing.assert_array_equal(values, theirs[name].numpy())
        assert values.shape == theirs[name].shape


def test_raw_bytes_as_tensorflow_decodes_them() -> None:
    arrays = [np.random.default_rng(seed).integers(-99, 99, (3, 2)).astype("<i2") for seed in range(4)]
    serialized = [by_tensorflow({"bytes": [array.tobytes()]}) for array in arrays]
    strings = tf.io.parse_example(serialized, {"bytes": tf.io.FixedLenFeature([], tf.string)})["bytes"]
    theirs = tf.reshape(tf.io.decode_raw(strings, tf.int16), [-1, 3, 2])
    ours = parse_example(serialized, {"bytes": RawFeature((3, 2), np.int16)})["bytes"]
    np.testing.assert_array_equal(ours, theirs.numpy(), strict=True)


@pytest.mark.parametrize(
    ("values", "theirs", "ours"),
    [
        ({}, ("int64", []), FixedLenFeature((), np.int64)),
        ({"integers": [1, 2]}, ("int64", []), FixedLenFeature((), np.int64)),
        ({"integers": []}, ("int64", [1], [5]), FixedLenFeature((1,), np.int64, [5])),
        ({"integers": [1]}, ("float32", []), FixedLenFeature((), np.float32)),
    ],
)
def test_what_they_refuse_we_refuse(values: dict[str, list[Any]], theirs: Any, ours: Feature) -> None:
    serialized = by_tensorflow(values)
    dtype, shape, *default = theirs
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.io.parse_example(
            [serialized], {"integers": tf.io.FixedLenFeature(shape, tf.as_dtype(dtype), *default)}
        )
    with pytest.raises(DataError, match="'integers'"):
        parse_example([serialized], {"integers": ours})


SOUND = by_tensorflow({"bytes": [b"abc", b""], "floats": [1.5, -2.0], "integers": [1, -1, 300]})


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), max_size=2),
    st.binary(max_size=5),
)
def test_what_protobuf_takes_we_take(changes: list[tuple[int, int]], more: bytes) -> None:
    changed = bytearray(SOUND + more)
    for at, byte in changes:
        changed[at] = byte
    try:
        found = tf.train.Example.FromString(bytes(changed)).features.feature
    except Exception:  # noqa: BLE001  an exception of protobuf's own
        return
    kinds = {"bytes_list": bytes, "float_list": np.float32, "int64_list": np.int64}
    for name in found:
        kind = found[name].WhichOneof("kind")
        if kind is not None:
            values = parse_example(bytes(changed), {name: VarLenFeature(kinds[kind])})[name]
            theirs = np.fromiter(getattr(found[name], kind).value, values.dtype)
            np.testing.assert_array_equal(values, theirs, strict=True)
