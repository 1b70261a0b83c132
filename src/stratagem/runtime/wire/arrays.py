"""Host arrays as the wire sends them: of known element types, contiguous, in native byte order, aligned when received."""

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from stratagem.errors import LimitExceeded, ProtocolError

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

ALIGNMENT = 64
"""XLA reads a host array without a copy only if it begins on such a boundary."""
_NUMPY_NAMES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
)
# Types narrower than a byte take a byte per element in host memory, and so on the wire.
_ML_NAMES = (
    "bfloat16 float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 "
    "float8_e5m2fnuz float8_e8m0fnu float6_e2m3fn float6_e3m2fn float4_e2m1fn "
    "int1 int2 int4 uint1 uint2 uint4"
)


@cache
def _table() -> dict[str, np.dtype[np.generic]]:
    """Return every dtype that JAX has, by name."""
    table: dict[str, np.dtype[np.generic]] = {name: np.dtype(name) for name in _NUMPY_NAMES.split()}
    for name in _ML_NAMES.split():
        scalar = getattr(ml_dtypes, name, None)
        if scalar is not None:
            table[name] = np.dtype(scalar)
    return table


@cache
def _names() -> dict[np.dtype[np.generic], str]:
    return {dtype: name for name, dtype in _table().items()}


def dtype_names() -> list[str]:
    """Return all names that `dtype_of` knows."""
    return list(_table())


def dtype_of(name: object) -> np.dtype[np.generic]:
    """Return the dtype of a name; raise `ProtocolError` if it may not cross the wire."""
    dtype = _table().get(name) if isinstance(name, str) else None
    if dtype is None:
        raise ProtocolError(f"unknown dtype on the wire: {name!r:.80}; known dtypes: {', '.join(_table())}")
    return dtype


def name_of(dtype: np.dtype[np.generic]) -> str:
    """Return the name of a dtype in native byte order; raise `ProtocolError` if it may not cross the wire."""
    name = _names().get(dtype)
    if name is None:
        raise ProtocolError(
            f"arrays of dtype {dtype} cannot be sent; dtypes that can be sent: {', '.join(_table())}"
        )
    return name


def sendable(value: Any) -> Array:
    """Return the value as a C-contiguous array in native byte order, copied only if it is not one already."""
    array = np.asarray(value, order="C")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def raw_bytes(array: Array) -> Array:
    """Return the bytes of a contiguous array as a flat view."""
    return array.reshape(-1).view(np.uint8)


def raw_view(array: Array) -> memoryview:
    """Return the bytes of a contiguous array as a view for a socket."""
    buffer: Any = raw_bytes(array)
    return memoryview(buffer)


def empty_aligned(dtype: np.dtype[Any], shape: Sequence[int], nbytes: int) -> Array:
    """Return a new array whose first element lies on a 64-byte boundary.

    A large array is only address space until bytes arrive: a length that is claimed but never sent costs no memory.
    """
    try:
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    except MemoryError as error:
        raise LimitExceeded(f"no memory for a tensor of {nbytes} bytes") from error
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    try:
        return raw[start : start + nbytes].view(dtype).reshape(shape)
    except ValueError as error:
        raise ProtocolError(f"a tensor cannot have shape {tuple(shape)}: {error}") from error


def align(offset: int) -> int:
    """Return the next aligned offset."""
    return (offset + ALIGNMENT - 1) & -ALIGNMENT
