"""The features of an Example: of fixed length, of variable length, and arrays stored as raw bytes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stratagem.errors import DataError

BYTES: Final = "bytes_list"
FLOATS: Final = "float_list"
INTEGERS: Final = "int64_list"
KINDS: Final = (BYTES, FLOATS, INTEGERS)
"""Kinds of values in an Example, in the order of their field numbers."""

_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    BYTES: np.dtype(object),
    FLOATS: np.dtype(np.float32),
    INTEGERS: np.dtype(np.int64),
}


@dataclass(frozen=True)
class FixedLenFeature:
    """A feature with the same number of values in every record.

    Args:
        shape: The shape of one record's values, such as `()` or `(28, 28)`.
        dtype: `np.float32`, `np.int64`, or `bytes` (parsed to an array of Python bytes).
        default_value: For records that do not have the feature: one value, or as many as `shape` holds.
            Without it a record that does not have the feature is an error.
    """

    shape: tuple[int, ...]
    dtype: Any
    default_value: Any = None

    def __post_init__(self) -> None:
        _normalize_shape(self)
        object.__setattr__(self, "dtype", _dtype(self.dtype))
        if self.default_value is not None:
            object.__setattr__(self, "default_value", self._normalize_default())

    def _normalize_default(self) -> tuple[Any, ...]:
        defaults = np.asarray(self.default_value, object).reshape(-1).tolist()
        if len(defaults) not in (1, self.size):
            raise DataError(
                f"default_value has {len(defaults)} values; shape {self.shape} takes one for all, or {self.size}"
            )
        if self.kind == BYTES:
            values = [value.encode() if isinstance(value, str) else value for value in defaults]
            is_right = all(isinstance(value, bytes) for value in values)
        else:
            allowed = (int, np.integer) if self.kind == INTEGERS else (int, float, np.integer, np.floating)
            is_right = all(isinstance(value, allowed) for value in defaults) and all(
                -(2**63) <= value < 2**63 for value in defaults if self.kind == INTEGERS
            )
            # Minus zero equals zero, and equal features share a parser.
            values = [value + 0 for value in defaults] if is_right else defaults
        if not is_right:
            raise DataError(f"default_value={self.default_value!r} does not fit dtype {self.dtype.name}")
        return tuple(values) if len(values) == self.size else tuple(values) * self.size

    @property
    def size(self) -> int:
        """The number of values in each record."""
        return math.prod(self.shape)

    @property
    def kind(self) -> str:
        """The list in the Example that has the values."""
        return _kind(self.dtype)


@dataclass(frozen=True)
class VarLenFeature:
    """A feature with any number of values in each record; a record that does not have it has none.

    Args:
        dtype: `np.float32`, `np.int64` or `bytes`.
    """

    dtype: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _dtype(self.dtype))

    @property
    def kind(self) -> str:
        """The list in the Example that has the values."""
        return _kind(self.dtype)


@dataclass(frozen=True)
class RawFeature:
    """An array stored as one bytes value, such as the pixels of a picture: `parse_example` and `decode_raw` in one.

    Args:
        shape: The array's shape.
        dtype: Its dtype, with its byte order as stored; little-endian unless it says otherwise.
    """

    shape: tuple[int, ...]
    dtype: Any = np.uint8

    def __post_init__(self) -> None:
        _normalize_shape(self)
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            raise DataError(f"dtype={self.dtype!r} is not a dtype that NumPy knows") from error
        if dtype.hasobject or not dtype.itemsize:
            raise DataError(f"dtype {dtype} has no raw bytes; give one such as np.uint8 or np.float32")
        object.__setattr__(self, "dtype", dtype.newbyteorder("<") if dtype.byteorder == "=" else dtype)

    @property
    def size(self) -> int:
        """The number of bytes in each record."""
        return math.prod(self.shape) * int(self.dtype.itemsize)

    @property
    def kind(self) -> str:
        """The list in the Example that has the bytes."""
        return BYTES


Feature = FixedLenFeature | VarLenFeature | RawFeature
Features = Mapping[str, Feature]


def _normalize_shape(feature: FixedLenFeature | RawFeature) -> None:
    value: Any = feature.shape
    shape = (value,) if isinstance(value, int) else tuple(value)
    if not all(isinstance(size, int | np.integer) and size >= 0 for size in shape):
        raise DataError(
            f"shape={value!r}; give a tuple of sizes, all known, such as () or (28, 28), or use VarLenFeature"
        )
    object.__setattr__(feature, "shape", tuple(int(size) for size in shape))


def _dtype(value: Any) -> np.dtype[Any]:
    if value is bytes or value is str or value == "bytes":
        return _DTYPES[BYTES]
    try:
        dtype: np.dtype[Any] | None = np.dtype(value)
    except TypeError:
        dtype = None
    if dtype is None or dtype not in _DTYPES.values():
        raise DataError(
            f"dtype={value!r}; an Example holds np.float32, np.int64 and bytes: take one of these and convert "
            f"the result, or RawFeature for an array stored as bytes"
        )
    return dtype


def _kind(dtype: np.dtype[Any]) -> str:
    return next(kind for kind, own in _DTYPES.items() if own == dtype)


@dataclass(frozen=True, eq=False)
class RaggedArray:
    """Rows of different lengths in one array: a batch of a feature of variable length.

    Attributes:
        values: All values, row after row.
        row_splits: Row i is `values[row_splits[i]:row_splits[i + 1]]`.

    Example:
        >>> ragged = RaggedArray(np.array([1, 2, 3]), np.array([0, 2, 2, 3]))
        >>> len(ragged), ragged[0], ragged.to_dense(0).tolist()
        (3, array([1, 2]), [[1, 2], [0, 0], [3, 0]])
    """

    values: NDArray[Any]
    row_splits: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    def __getitem__(self, row: int) -> NDArray[Any]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        return self.values[self.row_splits[row] : self.row_splits[row + 1]]

    @property
    def row_lengths(self) -> NDArray[np.int64]:
        """The number of values in each row."""
        return np.diff(self.row_splits)

    def to_dense(self, default_value: Any) -> NDArray[Any]:
        """Return all rows as long as the longest, filled up with a value."""
        lengths = self.row_lengths
        dense = np.full((len(self), int(lengths.max(initial=0))), default_value, self.values.dtype)
        dense[np.arange(dense.shape[1]) < lengths[:, None]] = self.values
        return dense
