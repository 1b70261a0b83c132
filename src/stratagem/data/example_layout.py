"""Where the values lie in a serialized `tf.train.Example`.

Records of one file mostly look alike: the same names, kinds and lengths, at the same places. So one record is
walked through in Python, which gives a layout; others are compared with it, many at once, in the bytes that
make it up (tags, lengths, names). Where these agree the values are at the same places.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stratagem.data.features import FLOATS, INTEGERS, KINDS
from stratagem.data.protobuf import FIXED32, LENGTH_DELIMITED, VARINT, Malformed, fields

_CONTINUES = 0x80


@dataclass(frozen=True)
class Place:
    """Where one feature's values are, relative to the beginning of the record.

    Attributes:
        kind: The kind of list.
        spans: For bytes one span per value; for numbers, spans that hold one or many of them.
        is_loose: Whether there are integers that are not packed; then their lengths are part of the layout.
    """

    kind: str
    spans: tuple[tuple[int, int], ...]
    is_loose: bool


class Layout:
    """The places of the wanted features in one record, and what makes up the rest of it.

    Args:
        places: By name; a name that is not there is not in the record.
        record: The record itself.
    """

    def __init__(self, places: dict[bytes, Place], record: NDArray[np.uint8]) -> None:
        self.places = places
        self._record = record

    @cached_property
    def _skeleton(self) -> "_Skeleton":
        bits = np.full(len(self._record), 0xFF, np.uint8)
        for place in self.places.values():
            for first, last in place.spans:
                bits[first:last] = _CONTINUES if place.is_loose else 0
        columns = np.flatnonzero(bits)
        breaks = np.flatnonzero(np.diff(columns) != 1) + 1
        runs = [(int(run[0]), int(run[-1]) + 1) for run in np.split(columns, breaks) if len(run)]
        return _Skeleton(runs, bits[columns], self._record[columns] & bits[columns])

    def fits(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Which rows, all as long as the layout's record, are laid out like it."""
        skeleton = self._skeleton
        size = len(skeleton.values)
        found = np.zeros((len(rows), -(-size // 8) * 8), np.uint8)
        position = 0
        for first, last in skeleton.runs:
            found[:, position : position + last - first] = rows[:, first:last]
            position += last - first
        if not skeleton.is_whole:
            found[:, :size] &= skeleton.bits
        found[:, :size] ^= skeleton.values
        # Eight bytes are looked at as one number: rows are short, and NumPy pays per row and not per byte.
        return np.asarray(~found.view(np.uint64).any(axis=1))


class _Skeleton:
    """The bytes of a record that are not values.

    Args:
        runs: Where they are,
        bits: which bits of them count,
        values: and what these are.
    """

    def __init__(
        self, runs: list[tuple[int, int]], bits: NDArray[np.uint8], values: NDArray[np.uint8]
    ) -> None:
        self.runs, self.bits, self.values = runs, bits, values
        self.is_whole = bool((bits == 0xFF).all())


def layout_of(data: bytes, start: int, end: int, wanted: Collection[bytes]) -> Layout:
    """The layout of the record between two positions of a buffer.

    Raises:
        Malformed: If these bytes are no Example.
    """
    places = {name: place for name, place in places_of(data, start, end).items() if name in wanted}
    return Layout(places, np.frombuffer(data, np.uint8)[start:end].copy())


def places_of(data: bytes, start: int, end: int) -> dict[bytes, Place]:
    """Where every feature's values are, relative to `start`."""
    found: dict[bytes, Place] = {}
    for number, wire_type, first, last in fields(data, start, end):
        if number == 1 and wire_type == LENGTH_DELIMITED:
            for inner, inner_type, entry, entry_end in fields(data, first, last):
                if inner == 1 and inner_type == LENGTH_DELIMITED:
                    name, place = _entry(data, entry, entry_end, start)
                    found.pop(name, None)  # of two entries of one name the last counts, even if it is empty
                    if place is not None:
                        found[name] = place
    return found


def _entry(data: bytes, start: int, end: int, origin: int) -> tuple[bytes, Place | None]:
    name, place = b"", None
    for number, wire_type, first, last in fields(data, start, end):
        if wire_type == LENGTH_DELIMITED and number == 1:
            name = data[first:last]
        elif wire_type == LENGTH_DELIMITED and number == 2:
            place = _feature(data, first, last, origin, place)
    return name, place


def _feature(data: bytes, start: int, end: int, origin: int, place: Place | None) -> Place | None:
    for number, wire_type, first, last in fields(data, start, end):
        if wire_type != LENGTH_DELIMITED or not 1 <= number <= len(KINDS):
            continue
        kind = KINDS[number - 1]
        spans, is_loose = _values(data, kind, first, last, origin)
        if place is not None and place.kind == kind:  # parts of one list
            spans, is_loose = (*place.spans, *spans), place.is_loose or is_loose
        place = Place(kind, spans, is_loose)
    return place


def _values(
    data: bytes, kind: str, start: int, end: int, origin: int
) -> tuple[tuple[tuple[int, int], ...], bool]:
    spans = []
    is_loose = False
    for number, wire_type, first, last in fields(data, start, end):
        if number != 1:
            continue
        if (kind, wire_type) == (INTEGERS, VARINT):
            is_loose = True
        elif wire_type != LENGTH_DELIMITED and (kind, wire_type) != (FLOATS, FIXED32):
            continue
        if kind == FLOATS and (last - first) % 4:
            raise Malformed(f"a float_list of {last - first} bytes, which is no multiple of 4")
        spans.append((first - origin, last - origin))
    return tuple(spans), is_loose
