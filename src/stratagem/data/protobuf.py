"""The wire format of protocol buffers, as far as `tf.train.Example` needs it: fields and varints."""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

VARINT: Final = 0
FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2
START_GROUP: Final = 3
END_GROUP: Final = 4
FIXED32: Final = 5
_LONGEST_VARINT = 10
_DEEPEST_GROUP = 100


class Malformed(Exception):
    """Bytes that are not a message; the caller knows where they came from and raises a `DataError`."""


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return the number that begins at a position, and where it ends."""
    value = shift = 0
    for at in range(position, min(end, position + _LONGEST_VARINT)):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + 1
        shift += 7
    raise Malformed(f"a number at byte {position} does not end where it should")


def fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message: number, wire type, where the value begins and where it ends.

    Groups, which an Example does not have, are skipped.
    """
    depth = 0
    while position < end:
        tag = data[position]
        if tag < 0x80:
            position += 1
        else:
            tag, position = read_varint(data, position, end)
        number, kind = tag >> 3, tag & 7
        start = position
        if not number or tag >> 32:
            raise Malformed(f"field number {number} at byte {start} is not possible")
        if kind == LENGTH_DELIMITED:
            length, start = read_varint(data, position, end)
            position = start + length
        elif kind == VARINT:
            _, position = read_varint(data, position, end)
        elif kind == FIXED32:
            position += 4
        elif kind == FIXED64:
            position += 8
        elif kind == START_GROUP and depth < _DEEPEST_GROUP:
            depth += 1
        elif kind == END_GROUP and depth:
            depth -= 1
            continue
        else:
            raise Malformed(f"wire type {kind} at byte {start} is not possible here")
        if position > end:
            raise Malformed(f"field {number} at byte {start} is longer than its message")
        if not depth:
            yield number, kind, start, position
    if depth:
        raise Malformed("a group does not end where it should")


def encode_varint(value: int) -> bytes:
    """Return a number that is not negative as a varint."""
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def encode_varints(values: NDArray[np.int64]) -> bytes:
    """Return numbers as varints, one after the other; a negative one takes ten bytes."""
    numbers = values.astype(np.uint64)
    if not len(numbers) or numbers.max() < 0x80:
        return numbers.astype(np.uint8).tobytes()
    shifts = np.arange(0, 70, 7, dtype=np.uint64)
    # Of ten bytes per number only those up to its highest bit are needed; the first always is.
    shifted = numbers[:, None] >> shifts
    is_needed = shifted != 0
    is_needed[:, 0] = True
    goes_on = np.zeros_like(is_needed)
    goes_on[:, :-1] = is_needed[:, 1:]
    groups = (shifted & 0x7F).astype(np.uint8) | (goes_on * np.uint8(0x80))
    encoded: NDArray[np.uint8] = groups[is_needed]
    return encoded.tobytes()


def decode_varints(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the numbers of varints that stand one after the other.

    Raises:
        Malformed: The last one does not end, or one is too long.
    """
    if not len(data):
        return np.zeros(0, np.int64)
    is_end = data < 0x80
    if is_end.all():
        return data.astype(np.int64)
    if not is_end[-1]:
        raise Malformed("the last of a list of numbers does not end")
    ends = np.flatnonzero(is_end)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > _LONGEST_VARINT:
        raise Malformed(f"a number in a list takes {longest} bytes")
    values: NDArray[np.uint64] = (data[starts] & 0x7F).astype(np.uint64)
    for place in range(1, longest):
        has_more = lengths > place
        bits = (data[starts[has_more] + place] & 0x7F).astype(np.uint64)
        values[has_more] |= bits << np.uint64(7 * place)
    return values.view(np.int64)
