"""The values of each feature, collected for a whole batch from blocks of records that are laid out alike."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratagem.data.example_layout import FeatureSpans
from stratagem.data.features import (
    BYTES,
    FLOATS,
    INTEGERS,
    Feature,
    FixedLenFeature,
    RaggedArray,
    RawFeature,
    VarLenFeature,
)
from stratagem.data.protobuf import Malformed, decode_varints

Rows = slice | NDArray[np.intp]


class FeatureMismatch(Exception):
    """A record does not have the values that a feature asks for.

    Args:
        row: The index of the record in its block.
        problem: What is wrong with it.
    """

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row = row


@dataclass(frozen=True, eq=False)
class Block:
    """Records that are laid out alike.

    Attributes:
        rows: Their indices in the batch.
        matrix: Their bytes, a row each.
        buffer: Holds the same bytes.
        starts: Where each record begins in the buffer.
    """

    rows: Rows
    matrix: NDArray[np.uint8]
    buffer: bytes
    starts: NDArray[np.int64]

    def bytes_at(self, spans: tuple[tuple[int, int], ...]) -> list[bytes]:
        """Return the values of some spans, record after record."""
        buffer = self.buffer
        if len(spans) == 1:
            ((first, end),) = spans
            return [buffer[start + first : start + end] for start in self.starts.tolist()]
        return [buffer[start + first : start + end] for start in self.starts.tolist() for first, end in spans]

    def join(self, spans: tuple[tuple[int, int], ...]) -> NDArray[np.uint8]:
        """Return the bytes of some spans, one row per record."""
        if len(spans) == 1:
            return self.matrix[:, spans[0][0] : spans[0][1]]
        parts = [self.matrix[:, first:end] for first, end in spans]
        return np.concatenate(parts, axis=1) if parts else self.matrix[:, :0]

    def floats(self, feature: FeatureSpans) -> NDArray[np.float32]:
        """Return floating-point values, one row per record."""
        joined = self.join(feature.spans)
        return joined.view("<f4") if joined.shape[1] else np.zeros((len(joined), 0), np.float32)

    def integers(self, feature: FeatureSpans) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many integers each record has, and all of them, record after record."""
        for _, end in (span for span in feature.spans if span[0] < span[1]):
            is_cut = self.matrix[:, end - 1] >= 0x80
            if is_cut.any():
                raise FeatureMismatch(int(is_cut.argmax()), "has a list of integers whose last does not end")
        joined = self.join(feature.spans)
        counts = np.count_nonzero(joined < 0x80, axis=1)
        try:
            return counts, decode_varints(joined.reshape(-1))
        except Malformed:
            for row, own in enumerate(joined):  # the record matters only if something is wrong
                try:
                    decode_varints(own)
                except Malformed as error:
                    raise FeatureMismatch(
                        row, f"has a list of integers that cannot be read: {error}"
                    ) from error
            raise


class FeatureColumn(ABC):
    """Collects a feature's values block by block."""

    @abstractmethod
    def fill(self, block: Block, spans: FeatureSpans | None) -> None:
        """Add the values of a block; `spans` is None if its records do not have the feature."""

    @abstractmethod
    def result(self) -> NDArray[Any] | RaggedArray:
        """Return all values."""


def column_for(feature: Feature, count: int) -> FeatureColumn:
    """Return an empty column for a batch of `count` records."""
    if isinstance(feature, FixedLenFeature):
        return _FixedColumn(feature, count)
    if isinstance(feature, RawFeature):
        return _RawColumn(feature, count)
    return _RaggedColumn(feature, count)


def _check_kind(feature: Feature, spans: FeatureSpans) -> None:
    if spans.kind != feature.kind:
        raise FeatureMismatch(0, f"has a {spans.kind}, but a {feature.kind} is expected")


class _FixedColumn(FeatureColumn):
    """Collects values in one array of the batch's shape."""

    def __init__(self, feature: FixedLenFeature, count: int) -> None:
        self._feature = feature
        self._values = np.empty((count, feature.size), feature.dtype)

    def fill(self, block: Block, spans: FeatureSpans | None) -> None:
        feature, rows = self._feature, block.rows
        if spans is None:
            if feature.default_value is None:
                raise FeatureMismatch(0, "is missing, and has no default_value")
            default = np.empty(feature.size, feature.dtype)
            default[:] = feature.default_value
            self._values[rows] = default
            return
        _check_kind(feature, spans)
        if feature.kind == BYTES:
            self._check_counts(np.array([len(spans.spans)]))
            values = np.fromiter(block.bytes_at(spans.spans), object, len(block.starts) * feature.size)
            self._values[rows] = values.reshape(len(block.starts), feature.size)
        elif feature.kind == FLOATS:
            floats = block.floats(spans)
            self._check_counts(np.array([floats.shape[1]]))
            self._values[rows] = floats
        else:
            counts, integers = block.integers(spans)
            self._check_counts(counts)
            self._values[rows] = integers.reshape(len(block.starts), feature.size)

    def _check_counts(self, counts: NDArray[np.int64]) -> None:
        is_wrong = counts != self._feature.size
        if is_wrong.any():
            row = int(is_wrong.argmax())
            raise FeatureMismatch(
                row,
                f"has {counts[row]} values, but shape {self._feature.shape} takes {self._feature.size}; "
                f"a feature of any length is a VarLenFeature",
            )

    def result(self) -> NDArray[Any]:
        return self._values.reshape(-1, *self._feature.shape) if self._values.size else self._empty()

    def _empty(self) -> NDArray[Any]:
        return np.empty((len(self._values), *self._feature.shape), self._feature.dtype)


class _RawColumn(FeatureColumn):
    """Collects bytes in one array of the batch's shape."""

    def __init__(self, feature: RawFeature, count: int) -> None:
        self._feature = feature
        self._bytes = np.empty((count, feature.size), np.uint8)

    def fill(self, block: Block, spans: FeatureSpans | None) -> None:
        feature = self._feature
        if spans is None:
            raise FeatureMismatch(0, "is missing")
        _check_kind(feature, spans)
        if len(spans.spans) != 1:
            raise FeatureMismatch(0, f"has {len(spans.spans)} bytes values, but a RawFeature is in one")
        ((first, end),) = spans.spans
        if end - first != feature.size:
            raise FeatureMismatch(
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


class _RaggedColumn(FeatureColumn):
    """Collects values in a ragged array; blocks come in any order."""

    def __init__(self, feature: VarLenFeature, count: int) -> None:
        self._feature = feature
        self._lengths = np.zeros(count, np.int64)
        self._parts: list[tuple[Rows, NDArray[Any]]] = []

    def fill(self, block: Block, spans: FeatureSpans | None) -> None:
        if spans is None:
            return
        _check_kind(self._feature, spans)
        count = len(block.starts)
        values: NDArray[Any]
        if spans.kind == INTEGERS:
            lengths, values = block.integers(spans)
        elif spans.kind == FLOATS:
            floats = block.floats(spans)
            lengths, values = np.full(count, floats.shape[1]), floats.reshape(-1)
        else:
            lengths = np.full(count, len(spans.spans))
            values = np.fromiter(block.bytes_at(spans.spans), object, count * len(spans.spans))
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
