"""Serialized Examples: what is made is parsed, alone and in batches; what does not fit is named."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.data import (
    FixedLenFeature,
    RaggedArray,
    RawFeature,
    VarLenFeature,
    make_example,
    parse_example,
    read_tfrecord,
    write_tfrecord,
)
from stratagem.data.features import Feature
from stratagem.data.protobuf import encode_varint
from stratagem.errors import DataError

INT64 = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-3, 300))
FLOAT = st.floats(width=32, allow_nan=False)
VALUES: dict[str, st.SearchStrategy[list[Any]]] = {
    "bytes": st.lists(st.binary(max_size=200), max_size=4),
    "floats": st.lists(FLOAT, max_size=5),
    "integers": st.lists(INT64, max_size=5),
}
EXAMPLES = st.lists(st.fixed_dictionaries({}, optional=VALUES), min_size=1, max_size=12)
VARIABLE: dict[str, Feature] = {
    "bytes": VarLenFeature(bytes),
    "floats": VarLenFeature(np.float32),
    "integers": VarLenFeature(np.int64),
}


def message(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content


def example_of(**features: bytes) -> bytes:
    """An Example of features that are serialized already."""
    entries = [message(1, message(1, name.encode()) + message(2, data)) for name, data in features.items()]
    return message(1, b"".join(entries))


@given(EXAMPLES)
def test_variable_lengths_round_trip(examples: list[dict[str, list[Any]]]) -> None:
    serialized = [make_example(example) for example in examples]
    parsed = parse_example(serialized, VARIABLE)
    for name in VALUES:
        assert [row.tolist() for row in parsed[name]] == [example.get(name, []) for example in examples]
    for record, example in zip(serialized, examples, strict=True):
        alone = parse_example(record, VARIABLE)
        assert {name: values.tolist() for name, values in alone.items()} == {
            name: example.get(name, []) for name in VALUES
        }


@given(st.data())
def test_fixed_lengths_round_trip(data: st.DataObject) -> None:
    count, size = data.draw(st.integers(1, 10)), data.draw(st.integers(0, 4))
    integers = [data.draw(st.lists(INT64, min_size=size, max_size=size)) for _ in range(count)]
    floats = [data.draw(st.lists(FLOAT, min_size=2, max_size=2)) for _ in range(count)]
    raw = [data.draw(st.binary(min_size=8, max_size=8)) for _ in range(count)]
    is_there = [data.draw(st.booleans()) for _ in range(count)]
    serialized = [
        make_example(
            {"integers": np.array(integers[row], np.int64), "floats": floats[row], "raw": raw[row]}
            | ({"label": row} if is_there[row] else {})
        )
        for row in range(count)
    ]
    features: dict[str, Feature] = {
        "integers": FixedLenFeature((size,), np.int64),
        "floats": FixedLenFeature((2, 1), np.float32),
        "raw": RawFeature((2, 2), np.uint16),
        "label": FixedLenFeature((), np.int64, default_value=-1),
    }
    parsed = parse_example(serialized, features)
    assert parsed["integers"].shape == (count, size)
    assert parsed["integers"].tolist() == integers
    assert parsed["floats"].reshape(-1, 2).tolist() == floats
    assert parsed["raw"].shape == (count, 2, 2)
    assert [row.astype("<u2").tobytes() for row in parsed["raw"]] == raw
    assert parsed["label"].tolist() == [row if is_there[row] else -1 for row in range(count)]


def test_values_of_every_kind() -> None:
    example = make_example(
        {
            "bool": True,
            "bools": np.array([True, False]),
            "small": np.int8(-1),
            "matrix": np.arange(4, dtype=np.uint16).reshape(2, 2),
            "half": np.float16(0.5),
            "doubles": (1.0, 2),
            "text": "é",
            "texts": np.array(["a", "b"]),
            "views": [bytearray(b"x\0"), memoryview(b"y")],
            "objects": np.array([b"z\0"], object),
            "nothing": [],
        }
    )
    parsed = parse_example(
        example,
        {name: VarLenFeature(np.int64) for name in ("bool", "bools", "small", "matrix", "nothing")}
        | {name: VarLenFeature(np.float32) for name in ("half", "doubles")}
        | {name: VarLenFeature(bytes) for name in ("text", "texts", "views", "objects")},
    )
    assert {name: values.tolist() for name, values in parsed.items()} == {
        "bool": [1],
        "bools": [1, 0],
        "small": [-1],
        "matrix": [0, 1, 2, 3],
        "nothing": [],
        "half": [0.5],
        "doubles": [1.0, 2.0],
        "text": ["é".encode()],
        "texts": [b"a", b"b"],
        "views": [b"x\0", b"y"],
        "objects": [b"z\0"],
    }


def test_the_same_values_are_the_same_bytes() -> None:
    assert make_example({"a": 1, "b": 2}) == make_example({"b": 2, "a": 1})


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "is NoneType"),
        ({"a": 1}, "is dict"),
        (1 + 2j, "is complex"),
        ([b"a", 1], "mixes bytes with int"),
        ([[1], [1, 2]], "list of equal parts"),
        (2**63, "9223372036854775808, which an int64_list cannot hold"),
        (2**70, "an Example holds bytes"),
        (1e300, "too large for float32"),
        (np.array([b"a\0"]), "loses trailing zero bytes"),
    ],
)
def test_values_that_cannot_be_stored(value: object, problem: str) -> None:
    with pytest.raises(DataError, match=f"feature 'x'.*{problem}"):
        make_example({"x": value})


# Lists of numbers as other writers have them: packed, not packed, in parts, with fields that are not ours.
LOOSE_INTEGERS = message(3, b"".join(b"\x08" + encode_varint(value) for value in (1, 300, 2**64 - 1)))
PACKED_INTEGERS = message(3, message(1, b"".join(map(encode_varint, (1, 300, 2**64 - 1)))))
MIXED_INTEGERS = message(3, message(1, b"\x01") + b"\x08" + encode_varint(300)) + message(
    3, message(1, encode_varint(2**64 - 1))
)
LOOSE_FLOATS = message(2, b"".join(b"\x0d" + np.float32(value).tobytes() for value in (1, 2)))
PACKED_FLOATS = message(2, message(1, np.array([1, 2], "<f4").tobytes()))
STRANGE = message(9, b"what") + b"\x50\x05" + b"\x59" + bytes(8) + b"\x65" + bytes(4) + b"\x6b\x08\x01\x6c"


@pytest.mark.parametrize("integers", [LOOSE_INTEGERS, PACKED_INTEGERS, MIXED_INTEGERS])
@pytest.mark.parametrize("floats", [LOOSE_FLOATS, PACKED_FLOATS])
@pytest.mark.parametrize("strange", [b"", STRANGE])
def test_packed_or_not(integers: bytes, floats: bytes, strange: bytes) -> None:
    record = strange + example_of(i=strange + integers + strange, other=strange, f=floats) + strange
    features = {"i": FixedLenFeature((3,), np.int64), "f": FixedLenFeature((2,), np.float32)}
    for parsed in (parse_example(record, features), parse_example([record] * 3, features)):
        assert parsed["i"].reshape(-1, 3)[-1].tolist() == [1, 300, -1]
        assert parsed["f"].reshape(-1, 2)[-1].tolist() == [1, 2]


def test_records_of_one_length_but_another_layout() -> None:
    # Equal lengths everywhere, so only the bytes between the values tell these apart.
    records = [
        example_of(i=message(3, b"\x08\x81\x01"), j=message(3, b"\x08\x05")),
        example_of(i=message(3, b"\x08\x05"), j=message(3, b"\x08\x81\x01")),
        example_of(j=message(3, b"\x08\x05"), i=message(3, b"\x08\x81\x01")),
        example_of(i=message(3, b"\x08\x82\x01"), j=message(3, b"\x08\x06")),
    ]
    assert len({len(record) for record in records}) == 1
    features = {"i": FixedLenFeature((), np.int64), "j": FixedLenFeature((), np.int64)}
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 1, 2, 3]):
        parsed = parse_example([records[at] for at in order], features)
        assert parsed["i"].tolist() == [[129, 5, 129, 130][at] for at in order]
        assert parsed["j"].tolist() == [[5, 129, 5, 6][at] for at in order]


def test_integers_that_are_not_packed_and_cut_otherwise() -> None:
    # The tags of the first are in the second too, but there the third of them is a value.
    records = [
        example_of(i=message(3, b"\x08\x85\x08\x08\x81\x01")),
        example_of(i=message(3, b"\x08\x05\x08\x08\x08\x01")),
    ]
    parsed = parse_example(records, {"i": VarLenFeature(np.int64)})
    assert [row.tolist() for row in parsed["i"]] == [[1029, 129], [5, 8, 1]]


@pytest.mark.parametrize(
    ("contents", "row"),
    [
        ([message(1, b"\x81") + message(1, b"\x01")], 0),  # the number would end in the next part of the list
        ([message(1, b"\x01"), message(1, b"\x81"), message(1, b"\x01")], 1),  # or in the next record
        ([message(1, b"\x01" * 11), message(1, b"\x80" * 10 + b"\x01")], 1),
    ],
)
def test_integers_that_do_not_end(contents: list[bytes], row: int) -> None:
    records = [example_of(i=message(3, content)) for content in contents]
    with pytest.raises(DataError, match=f"record {row}: feature 'i' has a list of integers"):
        parse_example(records, {"i": VarLenFeature(np.int64)})


def test_the_last_of_two_entries_counts() -> None:
    one, two = message(3, message(1, b"\x01")), message(3, message(1, b"\x02"))
    record = example_of(x=one) + example_of(x=two)
    assert parse_example(record, {"x": FixedLenFeature((), np.int64)})["x"] == 2
    other_kind = example_of(x=one + message(2, message(1, np.float32(0.5).tobytes())))
    assert parse_example(other_kind, {"x": FixedLenFeature((), np.float32)})["x"] == 0.5


def test_defaults() -> None:
    empty = make_example({})
    assert empty == b"\x0a\x00"
    features: dict[str, Feature] = {
        "one": FixedLenFeature((2,), np.float32, 7),
        "each": FixedLenFeature((2,), np.int64, [1, 2]),
        "text": FixedLenFeature((), bytes, "none"),
        "any": VarLenFeature(bytes),
    }
    for serialized in (b"", empty):
        parsed = parse_example([serialized], features)
        assert parsed["one"].tolist() == [[7, 7]]
        assert parsed["each"].tolist() == [[1, 2]]
        assert parsed["text"].tolist() == [b"none"]
        assert len(parsed["any"]) == 1 and parsed["any"][0].tolist() == []


def test_an_empty_batch() -> None:
    parsed = parse_example(
        [], {"x": FixedLenFeature((2, 3), np.float32), "y": VarLenFeature(bytes), "z": RawFeature((4,))}
    )
    assert parsed["x"].shape == (0, 2, 3)
    assert len(parsed["y"]) == 0
    assert parsed["z"].shape == (0, 4)


@pytest.mark.parametrize(
    ("value", "feature", "problem"),
    [
        (
            None,
            FixedLenFeature((), np.int64),
            "is missing, and has no default_value; expected is int64 of shape ()",
        ),
        (None, RawFeature((2,)), "is missing; expected is uint8 of shape (2,) as raw bytes"),
        (1.5, FixedLenFeature((), np.int64), "has a float_list, but a int64_list is expected"),
        (
            1,
            VarLenFeature(bytes),
            "has a int64_list, but a bytes_list is expected; expected is any number of bytes",
        ),
        ([1, 2, 3], FixedLenFeature((2, 2), np.int64), "has 3 values, but shape (2, 2) takes 4"),
        ([1.0], FixedLenFeature((2,), np.float32), "has 1 values, but shape (2,) takes 2"),
        ([b"a", b"b"], FixedLenFeature((), bytes), "has 2 values, but shape () takes 1"),
        (b"abc", RawFeature((2,), np.int16), "has 3 bytes, but shape (2,) of int16 takes 4"),
        ([b"a", b"b"], RawFeature((1,)), "has 2 bytes values, but a RawFeature is in one"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, value: object, feature: Feature, problem: str) -> None:
    good: object = b"\0" * feature.size if isinstance(feature, RawFeature) else 0
    if isinstance(feature, FixedLenFeature):
        filler = {"int64": 5, "float32": 0.5, "object": b"five"}[feature.dtype.name]
        good = [filler] * feature.size
    elif isinstance(feature, VarLenFeature):
        good = [b"some", b"bytes"]
    records = [make_example({"x": good}), make_example({} if value is None else {"x": value})]
    path = tmp_path / "examples"
    write_tfrecord(path, records)
    (batch,) = read_tfrecord(path).batches(2)
    with pytest.raises(DataError) as raised:
        parse_example(batch, {"x": feature})
    assert f"{path}, record at byte {len(records[0]) + 16}: feature 'x' {problem}" in str(raised.value)
    with pytest.raises(DataError) as raised:
        parse_example(records, {"x": feature})
    assert str(raised.value).startswith("record 1: feature 'x'")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: FixedLenFeature((), np.float64), "an Example holds np.float32, np.int64 and bytes"),
        (lambda: FixedLenFeature(shape=(None,), dtype=np.int64), "all known"),  # type: ignore[arg-type]
        (lambda: FixedLenFeature((-1,), np.int64), "all known"),
        (lambda: FixedLenFeature((3,), np.int64, [1, 2]), "takes one for all, or 3"),
        (lambda: FixedLenFeature((), np.int64, 0.5), "does not fit dtype int64"),
        (lambda: FixedLenFeature((), np.int64, 2**70), "does not fit dtype int64"),
        (lambda: parse_example(b"", {"x": []}), "give a FixedLenFeature"),  # type: ignore[dict-item]
        (lambda: RawFeature((), object), "has no raw bytes"),
        (lambda: RawFeature((), "nonsense"), "not a dtype that NumPy knows"),
        (lambda: parse_example(b"", {"x": np.int64}), "give a FixedLenFeature"),  # type: ignore[dict-item]
        (lambda: parse_example(["text"], {}), "record 0 is a str"),  # type: ignore[list-item]
    ],
)
def test_wrong_features(make: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        make()


FEATURES: dict[str, Feature] = {
    "i": FixedLenFeature((), np.int64, 0),
    "f": VarLenFeature(np.float32),
    "b": RawFeature((3,)),
    "v": VarLenFeature(np.int64),
}
SOUND = make_example({"i": 300, "f": [1.0, 2.0], "b": b"abc", "v": [1, -1, 2**40]})


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4))
def test_any_bytes_are_parsed_or_refused(records: list[bytes]) -> None:
    for serialized in (records, records[0]):
        with suppress(DataError):
            parse_example(serialized, FEATURES)


@given(
    st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), max_size=3), st.integers(0, 200)
)
def test_a_changed_example_is_parsed_like_alone_or_refused(changes: list[tuple[int, int]], cut: int) -> None:
    changed = bytearray(SOUND)
    for at, byte in changes:
        changed[at] = byte
    record = bytes(changed[: len(SOUND) - max(0, cut - 100)])
    try:
        alone = parse_example([record], FEATURES)
    except DataError:
        with pytest.raises(DataError):
            parse_example([SOUND, record], FEATURES)
        return
    together = parse_example([SOUND, record, SOUND], FEATURES)
    for name, value in alone.items():
        np.testing.assert_array_equal(together[name][1], value[0])


def test_ragged_rows() -> None:
    ragged = RaggedArray(np.array([1, 2, 3]), np.array([0, 1, 3]))
    assert ragged[-1].tolist() == [2, 3]
    assert ragged.row_lengths.tolist() == [1, 2]
    with pytest.raises(IndexError, match="row 2 of 2"):
        ragged[2]
