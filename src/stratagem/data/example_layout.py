"""The positions of values in a serialized `tf.train.Example`.

Records of one file are mostly alike: the same names, kinds and lengths, at the same positions. So one record is
walked through in Python, which gives a layout; others are compared with it, many at once, in the bytes that are not
values (tags, lengths, names). Where these agree the values are at the same positions.
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
class FeatureSpans:
    """The positions of one feature's values, relative to the beginning of the record.

    Attributes:
        kind: The kind of list.
        spans: For bytes one span per value; for numbers, spans of one or many of them.
        is_loose: Whether there are integers that are not packed; their lengths are then part of the layout.
    """

    kind: str
    spans: tuple[tuple[int, int], ...]
    is_loose: bool


class ExampleLayout:
    """The positions of the requested features in one record, and the rest of its bytes.

    Args:
        features: The features in the record, by name.
        record: The record itself.
    """

    def __init__(self, features: dict[bytes, FeatureSpans], record: NDArray[np.uint8]) -> None:
        self.features = features
        self._record = record

    @cached_property
    def _skeleton(self) -> "_Skeleton":
        bits = np.full(len(self._record), 0xFF, np.uint8)
        for feature in self.features.values():
            for first, last in feature.spans:
                bits[first:last] = _CONTINUES if feature.is_loose else 0
        columns = np.flatnonzero(bits)
        breaks = np.flatnonzero(np.diff(columns) != 1) + 1
        runs = [(int(run[0]), int(run[-1]) + 1) for run in np.split(columns, breaks) if len(run)]
        return _Skeleton(runs, bits[columns], self._record[columns] & bits[columns])

    def fits(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return which rows, all as long as the layout's record, are laid out like it."""
        skeleton = self._skeleton
        size = len(skeleton.values)
        difference = np.zeros((len(rows), -(-size // 8) * 8), np.uint8)
        position = 0
        for first, last in skeleton.runs:
            difference[:, position : position + last - first] = rows[:, first:last]
            position += last - first
        if not skeleton.is_whole:
            difference[:, :size] &= skeleton.bits
        difference[:, :size] ^= skeleton.values
        # Eight bytes are compared as one number: rows are short, and NumPy pays per row and not per byte.
        return np.asarray(~difference.view(np.uint64).any(axis=1))


class _Skeleton:
    """The bytes of a record that are not values.

    Args:
        runs: Where they are.
        bits: Which of their bits count.
        values: The values of these bits.
    """

    def __init__(
        self, runs: list[tuple[int, int]], bits: NDArray[np.uint8], values: NDArray[np.uint8]
    ) -> None:
        self.runs, self.bits, self.values = runs, bits, values
        self.is_whole = bool((bits == 0xFF).all())


def layout_of(data: bytes, start: int, end: int, names: Collection[bytes]) -> ExampleLayout:
    """Return the layout of the record between two positions of a buffer, with the features of some names.

    Raises:
        Malformed: These bytes are not an Example.
    """
    features = {name: spans for name, spans in _all_features(data, start, end).items() if name in names}
    return ExampleLayout(features, np.frombuffer(data, np.uint8)[start:end].copy())


def _all_features(data: bytes, start: int, end: int) -> dict[bytes, FeatureSpans]:
    """Return where every feature's values are, relative to `start`."""
    features: dict[bytes, FeatureSpans] = {}
    for number, wire_type, first, last in fields(data, start, end):
        if number == 1 and wire_type == LENGTH_DELIMITED:
            for inner, inner_type, entry, entry_end in fields(data, first, last):
                if inner == 1 and inner_type == LENGTH_DELIMITED:
                    name, spans = _entry(data, entry, entry_end, start)
                    features.pop(
                        name, None
                    )  # of two entries of one name the last counts, even if it is empty
                    if spans is not None:
                        features[name] = spans
    return features


def _entry(data: bytes, start: int, end: int, origin: int) -> tuple[bytes, FeatureSpans | None]:
    name, feature = b"", None
    for number, wire_type, first, last in fields(data, start, end):
        if wire_type == LENGTH_DELIMITED and number == 1:
            name = data[first:last]
        elif wire_type == LENGTH_DELIMITED and number == 2:
            feature = _feature(data, first, last, origin, feature)
    return name, feature


def _feature(
    data: bytes, start: int, end: int, origin: int, feature: FeatureSpans | None
) -> FeatureSpans | None:
    for number, wire_type, first, last in fields(data, start, end):
        if wire_type != LENGTH_DELIMITED or not 1 <= number <= len(KINDS):
            continue
        kind = KINDS[number - 1]
        spans, is_loose = _values(data, kind, first, last, origin)
        if feature is not None and feature.kind == kind:  # parts of one list
            spans, is_loose = (*feature.spans, *spans), feature.is_loose or is_loose
        feature = FeatureSpans(kind, spans, is_loose)
    return feature


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
            raise Malformed(f"a float_list of {last - first} bytes, which is not a multiple of 4")
        spans.append((first - origin, last - origin))
    return tuple(spans), is_loose
