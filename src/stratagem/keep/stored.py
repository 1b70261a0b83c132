"""What an array in a shard is, without its values."""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from stratagem.errors import KeepError, ProtocolError
from stratagem.keep.fields import Field, shown
from stratagem.runtime.wire import dtype_of, name_of

_MOST_DIMENSIONS = 64
_MOST_BYTES = 2**63 - 1


@dataclass(frozen=True)
class StoredArray:
    """The shape and the dtype's name of an array on disk.

    Example:
        >>> str(StoredArray((784, 500), "float32"))
        'float32[784, 500]'
    """

    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        try:
            dtype_of(self.dtype)
        except ProtocolError as error:
            raise KeepError(f"the dtype {shown(self.dtype)} cannot be kept: {error}") from error
        lengths_are_whole = type(self.shape) is tuple and all(
            type(length) is int and length >= 0 for length in self.shape
        )
        if not lengths_are_whole or len(self.shape) > _MOST_DIMENSIONS or self.nbytes > _MOST_BYTES:
            raise KeepError(
                f"no array has the shape {shown(self.shape)}; it must be a tuple of at most {_MOST_DIMENSIONS} "
                "whole numbers from 0 up, such as (784, 500)"
            )

    @classmethod
    def of(cls, array: np.ndarray[Any, np.dtype[Any]]) -> Self:
        """What this array is, in native byte order; `KeepError` if such arrays cannot be kept."""
        dtype = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
        try:
            return cls(array.shape, name_of(dtype))
        except ProtocolError as error:
            raise KeepError(f"an array of dtype {array.dtype} cannot be kept: {error}") from error

    @property
    def element_type(self) -> np.dtype[Any]:
        """Its dtype."""
        return dtype_of(self.dtype)

    @property
    def nbytes(self) -> int:
        """How many bytes its elements take."""
        return math.prod(self.shape) * self.element_type.itemsize

    @property
    def rows(self) -> int:
        """Its length along axis 0; a scalar is one row."""
        return self.shape[0] if self.shape else 1

    @property
    def row_nbytes(self) -> int:
        """How many bytes a row takes."""
        return math.prod(self.shape[1:]) * self.element_type.itemsize

    def with_rows(self, rows: int) -> "StoredArray":
        """The same with another number of rows; a scalar has always one."""
        return StoredArray((rows, *self.shape[1:]), self.dtype) if self.shape else self

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    def to_list(self) -> list[Any]:
        """The same in plain values: dtype, then shape."""
        return [self.dtype, list(self.shape)]

    @classmethod
    def from_field(cls, field: Field) -> Self:
        """What `to_list` made, checked."""
        parts = field.items()
        if len(parts) != 2:
            raise field.error("[dtype, shape]")
        return cls(tuple(length.whole() for length in parts[1].items()), parts[0].text())
