"""What a peer claims is checked before anything is allocated for it."""

import math
from contextlib import suppress

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.errors import LimitExceeded, ProtocolError, RemoteError
from stratagem.runtime.wire import Limits
from stratagem.runtime.wire.frames import (
    INLINE,
    MAGIC,
    MAX_DEPTH,
    PREFIX,
    check_prefix,
    decode_header,
    pack,
    read_layout,
    unpack,
)

LIMITS = Limits(header_bytes=1000, frame_bytes=4096, tensors=4)


def header(*tensors: object, fields: object = None, timeout: object = None, segment: object = 0) -> bytes:
    packed: bytes = msgpack.packb(["call", {} if fields is None else fields, list(tensors), timeout, segment])
    return packed


def test_what_is_encoded_is_decoded() -> None:
    tensors = [("float32", (2, 3), INLINE), ("int8", (), 64), ("uint16", (0, 7), INLINE)]
    data = pack(("call", {"a": [1, {"b": b"c"}]}, tensors, 2.5, 4096))
    found = decode_header(data, 24, LIMITS)
    assert (found.subject, found.fields, found.timeout, found.segment) == (
        "call",
        {"a": [1, {"b": b"c"}]},
        2.5,
        4096,
    )
    assert (found.layout.total, found.layout.inline, found.layout.end) == (25, 24, 65)
    assert [(t.dtype.name, t.shape, t.nbytes, t.offset) for t in found.layout.specs] == [
        ("float32", (2, 3), 24, INLINE),
        ("int8", (), 1, 64),
        ("uint16", (0, 7), 0, INLINE),
    ]


@pytest.mark.parametrize(
    ("prefix", "error", "words"),
    [
        (PREFIX.pack(b"HTTP", 1, 1), ProtocolError, "not a frame"),
        (PREFIX.pack(MAGIC, 1001, 0), LimitExceeded, "header of 1001"),
        (PREFIX.pack(MAGIC, 10, 4097), LimitExceeded, "payload of 4097"),
        (PREFIX.pack(MAGIC, 2**32 - 1, 2**64 - 1), LimitExceeded, "header"),
    ],
)
def test_a_prefix_is_held_to_the_limits(prefix: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        check_prefix(prefix, LIMITS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb([1, 2]),
        msgpack.packb({"a": 1}),
        msgpack.packb([1, {}, [], None, 0]),
        header(fields=[1]),
        header(timeout="soon"),
        header(timeout=math.inf),
        header(timeout=math.nan),
        header(segment=-1),
        header(segment=1.5),
        header(fields={"a": msgpack.Timestamp(1, 2)}),
        header(fields={"a": msgpack.ExtType(5, b"x")}),
        header(["object", [1], INLINE]),
        header(["float32", "12", INLINE]),
        header(["float32", [-1], INLINE]),
        header(["float32", [1.0], INLINE]),
        header(["float32", [True], INLINE]),
        header(["float32", [1] * 65, INLINE]),
        header(["float32", [1], -2]),
        header(["float32", [1], 32]),
        header(["float32", [1], INLINE]),
        header([["float32"], [1], INLINE]),
        header("float32"),
    ],
)
def test_a_wrong_header_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_header(data, 0, LIMITS)


def test_tensors_are_held_to_the_limits() -> None:
    with pytest.raises(LimitExceeded, match="5 tensors"):
        decode_header(header(*[["int8", [1], INLINE]] * 5), 5, LIMITS)
    # Shared tensors may overlap: their sum counts, not the segment's size.
    with pytest.raises(LimitExceeded, match="bytes of tensors"):
        decode_header(header(*[["int8", [2048], 0]] * 3), 0, LIMITS)
    with pytest.raises(LimitExceeded):
        decode_header(header(["int8", [2**62, 2**62], INLINE]), 0, LIMITS)


def test_a_header_like_the_last_one_has_its_layout() -> None:
    listed = [["float32", [2, 3], INLINE], ["int8", [], 64]]
    last = read_layout(listed, LIMITS)
    assert decode_header(header(*listed), 24, LIMITS, last).layout is last
    with pytest.raises(ProtocolError, match="payload"):
        decode_header(header(*listed), 25, LIMITS, last)
    assert decode_header(header(["int8", [24], INLINE]), 24, LIMITS, last).layout.specs[0].shape == (24,)
    assert decode_header(header(), 0, LIMITS, last).layout.specs == []


def test_depth_is_limited() -> None:
    value: object = 1
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert unpack(pack(value)) == value
    for deep in (MAX_DEPTH, 500, 100_000):
        with pytest.raises(ProtocolError):
            unpack(b"\x91" * deep + b"\x01")


def test_huge_claims_inside_a_header_cost_nothing() -> None:
    for claim in (
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\x7f\xff\xff\xff",
    ):
        with pytest.raises(ProtocolError):
            unpack(claim * 100)


def test_what_cannot_be_sent_is_named() -> None:
    for value in (np.float32(1), object(), 2**70, {1, 2}):
        with pytest.raises(ProtocolError, match="cannot be sent"):
            pack({"a": value})


@given(st.binary(max_size=200), st.integers(0, 5000))
def test_no_bytes_raise_anything_else(data: bytes, payload: int) -> None:
    with suppress(RemoteError):
        decode_header(data, payload, LIMITS)


@given(st.data())
def test_no_changed_header_raises_anything_else(data: st.DataObject) -> None:
    good = bytearray(
        header(["float32", [2, 3], INLINE], ["bool", [], 64], fields={"a": [1, "b", b"c", 1.5]}, timeout=1.0)
    )
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RemoteError):
        decode_header(bytes(good), 24, LIMITS)


def test_limits_are_numbers() -> None:
    for value in (-1, "many", True, None):
        with pytest.raises(LimitExceeded, match="frame_bytes"):
            Limits(frame_bytes=value)  # type: ignore[arg-type]
