"""Records of shard files and their arrays, in plain values that travel: enough to read a file back and to verify it."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from stratagem.errors import KeepError, ProtocolError
from stratagem.keep.checked_json import JsonField, excerpt
from stratagem.keep.disk import shard_of
from stratagem.runtime.wire import dtype_of, name_of

_MOST_DIMENSIONS = 64
_MOST_BYTES = 2**63 - 1
_DIGEST = re.compile(r"[0-9a-f]{64}")
DIGEST_BYTES = 32
_SMALLEST = 10
"""Bytes of the smallest safetensors file: a length and `{}`."""


@dataclass(frozen=True)
class StoredArray:
    """An array in a shard, without its values: its shape and the name of its dtype.

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
            raise KeepError(f"the dtype {excerpt(self.dtype)} cannot be saved: {error}") from error
        has_whole_lengths = type(self.shape) is tuple and all(
            type(length) is int and length >= 0 for length in self.shape
        )
        if not has_whole_lengths or len(self.shape) > _MOST_DIMENSIONS or self.nbytes > _MOST_BYTES:
            raise KeepError(
                f"the shape {excerpt(self.shape)} is not possible; it must be a tuple of at most {_MOST_DIMENSIONS} "
                "whole numbers from 0 up, such as (784, 500)"
            )

    @classmethod
    def of(cls, array: np.ndarray[Any, np.dtype[Any]]) -> Self:
        """Describe an array, in native byte order; `KeepError` if such arrays cannot be saved."""
        dtype = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
        try:
            return cls(array.shape, name_of(dtype))
        except ProtocolError as error:
            raise KeepError(f"an array of dtype {array.dtype} cannot be saved: {error}") from error

    @property
    def element_type(self) -> np.dtype[Any]:
        """The dtype."""
        return dtype_of(self.dtype)

    @property
    def nbytes(self) -> int:
        """The number of bytes that its elements take."""
        return math.prod(self.shape) * self.element_type.itemsize

    @property
    def rows(self) -> int:
        """The length along axis 0; a scalar is one row."""
        return self.shape[0] if self.shape else 1

    @property
    def row_nbytes(self) -> int:
        """The number of bytes that a row takes."""
        return math.prod(self.shape[1:]) * self.element_type.itemsize

    def with_rows(self, rows: int) -> "StoredArray":
        """Return the same with another number of rows; a scalar always has one."""
        return StoredArray((rows, *self.shape[1:]), self.dtype) if self.shape else self

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    def to_list(self) -> list[Any]:
        """Return plain values: dtype, then shape."""
        return [self.dtype, list(self.shape)]

    @classmethod
    def from_field(cls, field: JsonField) -> Self:
        """Read the result of `to_list`, checked."""
        parts = field.items()
        if len(parts) != 2:
            raise field.error("[dtype, shape]")
        return cls(tuple(length.whole() for length in parts[1].items()), parts[0].text())


@dataclass(frozen=True)
class ShardRecord:
    """A finished shard file.

    Attributes:
        file: Its name in the snapshot's directory.
        nbytes: Its size.
        digest: BLAKE2b of all its bytes, 32 bytes in hexadecimal, as `b2sum --length 256` prints it.
        arrays: Its arrays, by key.
    """

    file: str
    nbytes: int
    digest: str
    arrays: Mapping[str, StoredArray]

    def __post_init__(self) -> None:
        shard_of(self.file)
        if type(self.nbytes) is not int or self.nbytes < _SMALLEST:
            raise KeepError(
                f"{self.file} is recorded with {excerpt(self.nbytes)} bytes; no shard has less than {_SMALLEST}"
            )
        if type(self.digest) is not str or not _DIGEST.fullmatch(self.digest):
            raise KeepError(
                f"{self.file} is recorded with the digest {excerpt(self.digest)}; it must be "
                f"{2 * DIGEST_BYTES} digits from 0 to f"
            )

    @property
    def shard(self) -> str:
        """The shard's name: the file's, without its suffix."""
        return shard_of(self.file)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON and for the wire."""
        arrays = {key: array.to_list() for key, array in self.arrays.items()}
        return {"file": self.file, "nbytes": self.nbytes, "digest": self.digest, "arrays": arrays}

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read the result of `to_dict`, checked."""
        return cls.from_field(JsonField(value, "shard record"))

    @classmethod
    def from_field(cls, field: JsonField) -> Self:
        """Read the result of `to_dict` as a part of a larger value."""
        parts = field.exactly({"file", "nbytes", "digest", "arrays"})
        arrays = {key: StoredArray.from_field(array) for key, array in parts["arrays"].members().items()}
        return cls(parts["file"].text(), parts["nbytes"].whole(), parts["digest"].text(), arrays)
