"""Checksums: masked CRC-32C, with known values, and the same from every way of computing it."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.data.tfrecord_frames import (
    checksum,
    count_sound_frames,
    find_frames,
    frame_records,
    length_checksums,
)

# From RFC 3720, appendix B.4.
KNOWN = [
    (b"", 0x00000000),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]
LENGTHS = [0, 1, 3, 4, 7, 8, 9, 63, 1000, 1024, 16383, 16384, 16385, 20_000, 70_000]


def bit_by_bit(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.parametrize(("data", "crc"), KNOWN)
def test_known_values(data: bytes, crc: int) -> None:
    assert bit_by_bit(data) == crc
    assert checksum(data) == masked(crc)


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths_around_every_limit(length: int) -> None:
    data = random.Random(length).randbytes(length)
    assert checksum(data) == masked(bit_by_bit(data))


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_many_at_once(records: list[bytes]) -> None:
    framed = frame_records(records)
    expected = b"".join(
        number(len(record), 8)
        + number(masked(bit_by_bit(number(len(record), 8))), 4)
        + record
        + number(masked(bit_by_bit(record)), 4)
        for record in records
    )
    assert framed == expected


def test_many_of_all_lengths_at_once() -> None:
    source = random.Random(0)
    records = [source.randbytes(length) for length in (*LENGTHS, *range(300), *LENGTHS)]
    buffer = frame_records(records)
    frames = find_frames(buffer)
    assert frames.lengths.tolist() == [len(record) for record in records]
    assert count_sound_frames(buffer, frames) == len(records)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_lengths(lengths: list[int]) -> None:
    checksums = length_checksums(np.array(lengths, np.uint64))
    assert checksums.tolist() == [checksum(length.to_bytes(8, "little")) for length in lengths]


def number(value: int, width: int) -> bytes:
    return value.to_bytes(width, "little")
