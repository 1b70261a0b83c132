"""Parses serialized `tf.train.Example`s, one or a batch at a time, straight into NumPy arrays."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from stratagem.data.example_columns import Block, FeatureColumn, FeatureMismatch, Rows, column_for
from stratagem.data.example_layout import ExampleLayout, layout_of
from stratagem.data.features import Feature, Features, RaggedArray, RawFeature, VarLenFeature
from stratagem.data.protobuf import Malformed
from stratagem.data.record_batch import RecordBatch
from stratagem.data.tfrecord_frames import windows
from stratagem.errors import DataError

_KNOWN_LENGTHS, _KNOWN_PER_LENGTH = 1024, 8


class ExampleParser:
    """Parses batches of Examples, and remembers the layouts of earlier ones.

    Args:
        features: The features to read, by name. Other features in the records are ignored.
    """

    def __init__(self, features: Features) -> None:
        self._features = dict(features)
        for name, feature in self._features.items():
            if not isinstance(name, str) or not isinstance(feature, Feature):
                raise DataError(
                    f"features[{name!r}] is {feature!r}; give a FixedLenFeature, VarLenFeature or RawFeature by name"
                )
        self._names = {name.encode(): name for name in self._features}
        self._known: dict[int, list[ExampleLayout]] = {}

    def parse(self, batch: RecordBatch) -> dict[str, NDArray[Any] | RaggedArray]:
        """Return the features of a batch of records, with the batch as the first axis."""
        columns = {name: column_for(feature, len(batch)) for name, feature in self._features.items()}
        for length, rows in _rows_by_length(batch.lengths):
            starts = batch.starts[rows]
            matrix = _rows_of(np.frombuffer(batch.buffer, np.uint8), starts, length)
            self._parse_block(batch, Block(rows, matrix, batch.buffer, starts), columns)
        return {name: column.result() for name, column in columns.items()}

    def _parse_block(self, batch: RecordBatch, block: Block, columns: dict[str, FeatureColumn]) -> None:
        """Parse records of one length: those of a known layout together, then learn from the first of the others."""
        known = self._known.get(block.matrix.shape[1], [])
        for layout in tuple(known):
            block = self._fill_fitting(batch, block, layout, columns)
            if not len(block.starts):
                return
        while len(block.starts):
            layout = self._learn(batch, block)
            if len(block.starts) == 1:
                self._fill(batch, block, layout, columns)
                return
            block = self._fill_fitting(batch, block, layout, columns)

    def _learn(self, batch: RecordBatch, block: Block) -> ExampleLayout:
        start, length = int(block.starts[0]), block.matrix.shape[1]
        try:
            layout = layout_of(block.buffer, start, start + length, self._names)
        except Malformed as error:
            raise DataError(
                f"{batch.where(_row(block.rows, 0))} is not a tf.train.Example: {error}; check the program that wrote the file"
            ) from error
        known = self._known.setdefault(length, []) if len(self._known) < _KNOWN_LENGTHS else []
        if len(known) < _KNOWN_PER_LENGTH:
            known.append(layout)
        return layout

    def _fill_fitting(
        self, batch: RecordBatch, block: Block, layout: ExampleLayout, columns: dict[str, FeatureColumn]
    ) -> Block:
        """Add the values of the records that fit. Return the block of those that do not."""
        fits = layout.fits(block.matrix)
        if fits.all():
            self._fill(batch, block, layout, columns)
            return _select(block, slice(0, 0))
        if fits.any():
            self._fill(batch, _select(block, np.flatnonzero(fits)), layout, columns)
            return _select(block, np.flatnonzero(~fits))
        return block

    def _fill(
        self, batch: RecordBatch, block: Block, layout: ExampleLayout, columns: dict[str, FeatureColumn]
    ) -> None:
        for encoded, name in self._names.items():
            try:
                columns[name].fill(block, layout.features.get(encoded))
            except FeatureMismatch as problem:
                raise DataError(
                    f"{batch.where(_row(block.rows, problem.row))}: feature {name!r} {problem}; expected is "
                    f"{_describe(self._features[name])}"
                ) from None


def _rows_by_length(lengths: NDArray[np.int64]) -> Iterator[tuple[int, Rows]]:
    """Yield the rows of each length."""
    if not len(lengths):
        return
    if (lengths == lengths[0]).all():
        yield int(lengths[0]), slice(0, len(lengths))
        return
    order = np.argsort(lengths, kind="stable")
    bounds = np.flatnonzero(np.diff(lengths[order])) + 1
    for rows in np.split(order, bounds):
        yield int(lengths[rows[0]]), rows


def _rows_of(raw: NDArray[np.uint8], starts: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """Return equally long parts of a buffer as rows of a matrix, without a copy if their distances are equal."""
    if len(starts) == 1:
        return raw[int(starts[0]) : int(starts[0]) + width].reshape(1, width)
    if len(starts) > 1:
        steps = np.diff(starts)
        step = int(steps[0])
        if step >= 0 and bool((steps == step).all()):
            return as_strided(raw[int(starts[0]) :], (len(starts), width), (step, 1), writeable=False)
    result: NDArray[np.uint8] = windows(raw, width)[starts]
    return result


def _select(block: Block, which: Rows) -> Block:
    rows = (
        np.arange(block.rows.start, block.rows.stop)[which]
        if isinstance(block.rows, slice)
        else block.rows[which]
    )
    return Block(rows, block.matrix[which], block.buffer, block.starts[which])


def _row(rows: Rows, index: int) -> int:
    return int(rows.start + index if isinstance(rows, slice) else rows[index])


def _describe(feature: Feature) -> str:
    names = {np.dtype(object): "bytes"}
    dtype = names.get(feature.dtype, feature.dtype.name)
    if isinstance(feature, VarLenFeature):
        return f"any number of {dtype}"
    return f"{dtype} of shape {feature.shape}" + (" as raw bytes" if isinstance(feature, RawFeature) else "")


@lru_cache(maxsize=32)
def _parser(features: tuple[tuple[str, Feature], ...]) -> ExampleParser:
    return ExampleParser(dict(features))


def parse_example(serialized: bytes | Sequence[bytes] | RecordBatch, features: Features) -> dict[str, Any]:
    """Parse one serialized `tf.train.Example`, or a batch of them, into NumPy arrays.

    A batch is fastest as a `RecordBatch`, as `read_tfrecord(...).batches(size)` yields them.

    Args:
        serialized: One record, or many.
        features: The features to read, by name: `FixedLenFeature`, `VarLenFeature` or `RawFeature`.

    Returns:
        By name: an array of the feature's shape; for a batch with the batch as its first axis. A feature of
        variable length is an array of one axis; for a batch, a `RaggedArray`.

    Raises:
        DataError: A record is not an Example, lacks a feature that has no default, or has another kind or number of
            values than asked for. The message names the feature and, where known, the file and the record's position in it.

    Example:
        >>> from stratagem.data import FixedLenFeature, VarLenFeature, make_example
        >>> examples = [make_example({"label": 1, "words": ["a", "b"]}), make_example({"label": 2})]
        >>> parsed = parse_example(
        ...     examples, {"label": FixedLenFeature((), np.int64), "words": VarLenFeature(bytes)}
        ... )
        >>> parsed["label"], parsed["words"][0]
        (array([1, 2]), array([b'a', b'b'], dtype=object))
    """
    try:
        parser = _parser(tuple(features.items()))
    except TypeError:  # an unhashable feature, which is refused
        parser = ExampleParser(features)
    if isinstance(serialized, RecordBatch):
        return dict(parser.parse(serialized))
    if not isinstance(serialized, bytes):
        return dict(parser.parse(RecordBatch.of(serialized)))
    parsed = parser.parse(RecordBatch.of([serialized]))
    return {
        name: value[0] if isinstance(value, RaggedArray) else value.reshape(value.shape[1:])
        for name, value in parsed.items()
    }
