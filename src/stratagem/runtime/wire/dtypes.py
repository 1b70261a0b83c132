"""The element types that cross the wire, by name: every dtype JAX has."""

from functools import cache

import ml_dtypes
import numpy as np

from stratagem.errors import ProtocolError

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
    """All names that `dtype_of` knows."""
    return list(_table())


def dtype_of(name: object) -> np.dtype[np.generic]:
    """The dtype of that name; `ProtocolError` if it is none that may cross the wire."""
    dtype = _table().get(name) if isinstance(name, str) else None
    if dtype is None:
        raise ProtocolError(f"no such dtype on the wire: {name!r:.80}; there are {', '.join(_table())}")
    return dtype


def name_of(dtype: np.dtype[np.generic]) -> str:
    """The name of a dtype in native byte order; `ProtocolError` if it may not cross the wire."""
    name = _names().get(dtype)
    if name is None:
        raise ProtocolError(f"arrays of dtype {dtype} cannot be sent; what can: {', '.join(_table())}")
    return name
