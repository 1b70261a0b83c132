"""CRC-32C: known values, and the same from every way of computing it."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.data import castagnoli, checksum

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


@pytest.mark.parametrize(("data", "crc"), KNOWN)
def test_known_values(data: bytes, crc: int) -> None:
    assert checksum.crc32c(data) == castagnoli.crc32c(data) == bit_by_bit(data) == crc


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths_around_every_limit(length: int) -> None:
    data = random.Random(length).randbytes(length)
    assert castagnoli.crc32c(data) == checksum.crc32c(data) == bit_by_bit(data)


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_many_at_once(records: list[bytes]) -> None:
    lengths = np.array([len(record) for record in records], np.int64)
    starts = np.cumsum(lengths) - lengths
    found = castagnoli.crc32c_of_each(b"".join(records), starts, lengths)
    assert found.tolist() == [bit_by_bit(record) for record in records]


def test_many_of_all_lengths_at_once() -> None:
    source = random.Random(0)
    records = [source.randbytes(length) for length in (*LENGTHS, *range(300), *LENGTHS)]
    lengths = np.array([len(record) for record in records], np.int64)
    starts = np.cumsum(lengths) - lengths
    expected = [castagnoli.crc32c(record) for record in records]
    assert castagnoli.crc32c_of_each(b"".join(records), starts, lengths).tolist() == expected
    masked = [checksum.masked_crc32c(record) for record in records]
    assert checksum.masked_crc32c_of_each(b"".join(records), starts, lengths).tolist() == masked


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_lengths(lengths: list[int]) -> None:
    found = checksum.masked_crc32c_of_lengths(np.array(lengths, np.uint64))
    assert found.tolist() == [checksum.masked_crc32c(length.to_bytes(8, "little")) for length in lengths]


def test_the_compiled_one_agrees() -> None:
    compiled = pytest.importorskip("google_crc32c")
    for length in LENGTHS:
        data = random.Random(length).randbytes(length)
        assert compiled.value(data) == castagnoli.crc32c(data)
