"""Values of one feature, gathered for a whole batch from blocks of records that are laid out alike."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stratagem.data.example_layout import Place
from stratagem.data.features import (
    BYTES,
    FLOATS,
    INTEGERS,
    Feature,
    FixedLenFeature,
    RawFeature,
    VarLenFeature,
)
from stratagem.data.protobuf import Malformed, decoded_varints
from stratagem.data.ragged import RaggedArray

Rows = slice | NDArray[np.intp]


class Unfit(Exception):
    """A record does not have what its feature asks for.

    Args:
        row: Which record of the block.
        problem: What is wrong with it.
    """

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row = row


@dataclass(frozen=True, eq=False)
class Block:
    """Records that are laid out alike.

    Attributes:
        rows: Which records of the batch they are.
        matrix: Their bytes, a row each.
        buffer: The same bytes, somewhere in there;
        starts: each record begins here.
    """

    rows: Rows
    matrix: NDArray[np.uint8]
    buffer: bytes
    starts: NDArray[np.int64]

    def bytes_at(self, spans: tuple[tuple[int, int], ...]) -> list[bytes]:
        """The values of these spans, record after record."""
        buffer = self.buffer
        if len(spans) == 1:
            ((first, end),) = spans
            return [buffer[start + first : start + end] for start in self.starts.tolist()]
        return [buffer[start + first : start + end] for start in self.starts.tolist() for first, end in spans]

    def joined(self, spans: tuple[tuple[int, int], ...]) -> NDArray[np.uint8]:
        """The bytes of these spans, one row per record."""
        if len(spans) == 1:
            return self.matrix[:, spans[0][0] : spans[0][1]]
        parts = [self.matrix[:, first:end] for first, end in spans]
        return np.concatenate(parts, axis=1) if parts else self.matrix[:, :0]

    def floats(self, place: Place) -> NDArray[np.float32]:
        """Floating-point values, one row per record."""
        joined = self.joined(place.spans)
        return joined.view("<f4") if joined.shape[1] else np.zeros((len(joined), 0), np.float32)

    def integers(self, place: Place) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How many integers each record has, and all of them, record after record."""
        for _, end in (span for span in place.spans if span[0] < span[1]):
            is_cut = self.matrix[:, end - 1] >= 0x80
            if is_cut.any():
                raise Unfit(int(is_cut.argmax()), "has a list of integers whose last does not end")
        joined = self.joined(place.spans)
        counts = np.count_nonzero(joined < 0x80, axis=1)
        try:
            return counts, decoded_varints(joined.reshape(-1))
        except Malformed:
            for row, own in enumerate(joined):  # which record it is does not matter until something is wrong
                try:
                    decoded_varints(own)
                except Malformed as error:
                    raise Unfit(row, f"has a list of integers that cannot be read: {error}") from error
            raise


class Column(Protocol):
    """Takes a feature's values block by block."""

    def fill(self, block: Block, place: Place | None) -> None:
        """Take the values of a block; None if its records do not have the feature."""

    def result(self) -> NDArray[Any] | RaggedArray:
        """All values."""


def column_for(feature: Feature, count: int) -> Column:
    """An empty column for a batch of so many records."""
    if isinstance(feature, FixedLenFeature):
        return _Fixed(feature, count)
    if isinstance(feature, RawFeature):
        return _Raw(feature, count)
    return _Variable(feature, count)


def _check_kind(feature: Feature, place: Place) -> None:
    if place.kind != feature.kind:
        raise Unfit(0, f"has a {place.kind}, but a {feature.kind} is wanted")


class _Fixed:
    """Into one array of the batch's shape."""

    def __init__(self, feature: FixedLenFeature, count: int) -> None:
        self._feature = feature
        self._values = np.empty((count, feature.size), feature.dtype)

    def fill(self, block: Block, place: Place | None) -> None:
        feature, rows = self._feature, block.rows
        if place is None:
            if feature.default_value is None:
                raise Unfit(0, "is missing, and has no default_value")
            default = np.empty(feature.size, feature.dtype)
            default[:] = feature.default_value
            self._values[rows] = default
            return
        _check_kind(feature, place)
        if feature.kind == BYTES:
            self._check_counts(np.array([len(place.spans)]))
            values = np.fromiter(block.bytes_at(place.spans), object, len(block.starts) * feature.size)
            self._values[rows] = values.reshape(len(block.starts), feature.size)
        elif feature.kind == FLOATS:
            floats = block.floats(place)
            self._check_counts(np.array([floats.shape[1]]))
            self._values[rows] = floats
        else:
            counts, integers = block.integers(place)
            self._check_counts(counts)
            self._values[rows] = integers.reshape(len(block.starts), feature.size)

    def _check_counts(self, counts: NDArray[np.int64]) -> None:
        is_wrong = counts != self._feature.size
        if is_wrong.any():
            row = int(is_wrong.argmax())
            raise Unfit(
                row,
                f"has {counts[row]} values, but shape {self._feature.shape} takes {self._feature.size}; "
                f"a feature of any length is a VarLenFeature",
            )

    def result(self) -> NDArray[Any]:
        return self._values.reshape(-1, *self._feature.shape) if self._values.size else self._empty()

    def _empty(self) -> NDArray[Any]:
        return np.empty((len(self._values), *self._feature.shape), self._feature.dtype)


class _Raw:
    """Into one array of the batch's shape, byte by byte."""

    def __init__(self, feature: RawFeature, count: int) -> None:
        self._feature = feature
        self._bytes = np.empty((count, feature.size), np.uint8)

    def fill(self, block: Block, place: Place | None) -> None:
        feature = self._feature
        if place is None:
            raise Unfit(0, "is missing")
        _check_kind(feature, place)
        if len(place.spans) != 1:
            raise Unfit(0, f"has {len(place.spans)} bytes values, but a RawFeature is in one")
        ((first, end),) = place.spans
        if end - first != feature.size:
            raise Unfit(
                0,
                f"has {end - first} bytes, but shape {feature.shape} of {feature.dtype} takes {feature.size}",
            )
        self._bytes[block.rows] = block.matrix[:, first:end]

    def result(self) -> NDArray[Any]:
        feature = self._feature
        shape = (len(self._bytes), *feature.shape)
        if not self._bytes.size:
            return np.empty(shape, feature.dtype.newbyteorder("="))
        values = self._bytes.reshape(-1).view(feature.dtype).reshape(shape)
        native: NDArray[Any] = values.astype(feature.dtype.newbyteorder("="), copy=False)
        return native


class _Variable:
    """Into a ragged array; blocks come in any order."""

    def __init__(self, feature: VarLenFeature, count: int) -> None:
        self._feature = feature
        self._lengths = np.zeros(count, np.int64)
        self._parts: list[tuple[Rows, NDArray[Any]]] = []

    def fill(self, block: Block, place: Place | None) -> None:
        if place is None:
            return
        _check_kind(self._feature, place)
        count = len(block.starts)
        values: NDArray[Any]
        if place.kind == INTEGERS:
            lengths, values = block.integers(place)
        elif place.kind == FLOATS:
            floats = block.floats(place)
            lengths, values = np.full(count, floats.shape[1]), floats.reshape(-1)
        else:
            lengths = np.full(count, len(place.spans))
            values = np.fromiter(block.bytes_at(place.spans), object, count * len(place.spans))
        self._lengths[block.rows] = lengths
        self._parts.append((block.rows, values))

    def result(self) -> RaggedArray:
        splits = np.concatenate([[0], np.cumsum(self._lengths)])
        if len(self._parts) == 1 and isinstance(self._parts[0][0], slice):
            return RaggedArray(self._parts[0][1].astype(self._feature.dtype, copy=False), splits)
        values = np.empty(int(splits[-1]), self._feature.dtype)
        for rows, part in self._parts:
            lengths = self._lengths[rows]
            before = np.cumsum(lengths) - lengths
            values[np.repeat(splits[:-1][rows] - before, lengths) + np.arange(len(part))] = part
        return RaggedArray(values, splits)
