"""CRC-32C (Castagnoli) in NumPy: of one long buffer, or of many records side by side.

A CRC from an initial value of zero ignores leading zeros and is linear. So records of different lengths can
stand right-aligned in one matrix, and the CRCs of parts can be joined to that of the whole.
"""

from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stratagem.data.byte_windows import windows

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
_LANE, _SHORT_LANE = 1024, 128
_LONG = 16 * _LANE
_BLOCK_BYTES = 1 << 22
_ROW_LIMIT = 1 << 16


def crc32c(data: bytes) -> int:
    """The CRC-32C of one buffer.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    if len(data) < _LONG:
        return _plainly(data, _ONES) ^ _ONES
    lanes = -(-len(data) // _LANE)
    matrix = np.zeros((lanes, _LANE), np.uint8)
    flat = matrix.reshape(-1)
    first = len(flat) - len(data)
    flat[first:] = np.frombuffer(data, np.uint8)
    flat[first : first + 4] ^= 0xFF  # the same as starting from ones
    low, second, third, high = _shift_tables(_LANE).tolist()
    whole = 0
    for lane in _from_zero(matrix).tolist():
        moved = low[whole & 0xFF] ^ second[whole >> 8 & 0xFF] ^ third[whole >> 16 & 0xFF] ^ high[whole >> 24]
        whole = moved ^ lane
    return whole ^ _ONES


def crc32c_of_each(
    buffer: bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """The CRC-32C of many parts of a buffer."""
    result = np.empty(len(starts), np.uint32)
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order]
    position = int(np.searchsorted(ordered, 4))
    end = int(np.searchsorted(ordered, _ROW_LIMIT))
    for row in (*order[:position].tolist(), *order[end:].tolist()):
        result[row] = crc32c(buffer[starts[row] : starts[row] + lengths[row]])
    raw = np.frombuffer(buffer, np.uint8)
    while position < end:
        shortest = int(ordered[position])
        stop = int(np.searchsorted(ordered, 2 * shortest + 64))  # bounds what is padded with zeros
        stop = min(stop, end, position + max(1, _BLOCK_BYTES // (2 * shortest + 64)))
        rows = order[position:stop]
        result[rows] = _of_block(raw, starts[rows], ordered[position:stop]) ^ np.uint32(_ONES)
        position = stop
    return result


def crc32c_of_words(words: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """The CRC-32C of each of many numbers, as eight little-endian bytes."""
    parts = (words.astype("<u8") ^ np.uint64(_ONES)).view(np.uint16).reshape(-1, 4)
    tables = _word_tables()
    crc = tables[0][parts[:, 0]]
    for part in range(1, 4):
        crc = crc ^ tables[part][parts[:, part]]
    return crc ^ np.uint32(_ONES)


def _of_block(
    raw: NDArray[np.uint8], starts: NDArray[np.int64], ordered: NDArray[np.int64]
) -> NDArray[np.uint32]:
    longest = int(ordered[-1])
    step = _SHORT_LANE if longest >= 2 * _SHORT_LANE else 8
    width = -(-longest // step) * step
    matrix = np.zeros((len(starts), width), np.uint8)
    bounds = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
    for begin, end in pairwise(bounds):
        length = int(ordered[begin])
        matrix[begin:end, width - length :] = windows(raw, length)[starts[begin:end]]
        matrix[begin:end, width - length : width - length + 4] ^= 0xFF
    if step == 8:
        return _from_zero(matrix)
    # Cut into lanes there are always many rows to do at once, however few and long the records are.
    lanes = _from_zero(matrix.reshape(-1, step)).reshape(len(starts), -1)
    tables = _shift_tables(step)
    whole = lanes[:, 0]
    for lane in range(1, lanes.shape[1]):
        places = whole.astype("<u4").view(np.uint8).reshape(-1, 4)
        whole = lanes[:, lane].copy()
        for place in range(4):
            whole ^= tables[place][places[:, place]]
    return whole


def _from_zero(matrix: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The CRCs of the rows, started from zero and not inverted; eight bytes of all rows at a time."""
    words = np.ascontiguousarray(matrix.view("<u2").T)
    tables = _word_tables()
    crc = np.zeros(len(matrix), np.uint32)
    found = np.empty_like(crc)
    for step in range(0, len(words), 4):
        low = crc.astype(np.uint16) ^ words[step]
        high = (crc >> 16).astype(np.uint16) ^ words[step + 1]
        # "clip" spares NumPy a copy of `out`; the indices are within the tables by their type.
        np.take(tables[0], low, out=crc, mode="clip")
        for part, indices in ((1, high), (2, words[step + 2]), (3, words[step + 3])):
            np.take(tables[part], indices, out=found, mode="clip")
            crc ^= found
    return crc


def _plainly(data: bytes, crc: int) -> int:
    table = _first_table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc


@cache
def _first_table() -> list[int]:
    table: list[int] = _byte_tables()[0].tolist()
    return table


@cache
def _byte_tables() -> NDArray[np.uint32]:
    """Table k: what a byte makes of the CRC, k bytes later."""
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, crc >> 1 ^ _POLYNOMIAL, crc >> 1).astype(np.uint32)
    tables = [crc]
    for _ in range(7):
        tables.append(tables[-1] >> 8 ^ crc[tables[-1] & 0xFF])
    return np.stack(tables)


@cache
def _word_tables() -> list[NDArray[np.uint32]]:
    """Table k: what the k-th of four 16-bit words makes of the CRC, at the end of the four."""
    tables, words = _byte_tables(), np.arange(1 << 16)
    return [tables[7 - 2 * k][words & 0xFF] ^ tables[6 - 2 * k][words >> 8] for k in range(4)]


@cache
def _shift_tables(length: int) -> NDArray[np.uint32]:
    """Per byte of a CRC: what it becomes when so many zeros follow."""
    table = _byte_tables()[0]
    crc = (np.arange(256, dtype=np.uint32) << np.array([[0], [8], [16], [24]], np.uint32)).astype(np.uint32)
    for _ in range(length):
        crc = crc >> 8 ^ table[crc & 0xFF]
    return crc
