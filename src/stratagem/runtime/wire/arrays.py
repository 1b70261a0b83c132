"""Host arrays as the wire wants them: contiguous, native byte order, 64-byte aligned when received."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from stratagem.errors import LimitExceeded, ProtocolError

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

ALIGNMENT = 64
"""XLA reads host arrays without a copy only if they begin on such a boundary."""


def sendable(value: Any) -> Array:
    """The value as a C-contiguous array in native byte order; copied only if it is not one already."""
    array = np.asarray(value, order="C")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def raw_bytes(array: Array) -> Array:
    """The bytes of a contiguous array, as a flat view."""
    return array.reshape(-1).view(np.uint8)


def raw_view(array: Array) -> memoryview:
    """The same for a socket."""
    buffer: Any = raw_bytes(array)
    return memoryview(buffer)


def typed(raw: Array, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    """Bytes seen as an array of that dtype and shape."""
    try:
        return raw.view(dtype).reshape(shape)
    except ValueError as error:
        raise ProtocolError(f"a tensor cannot have shape {tuple(shape)}: {error}") from error


def empty_aligned(dtype: np.dtype[Any], shape: Sequence[int], nbytes: int) -> Array:
    """A new array whose first element lies on a 64-byte boundary.

    Large arrays are address space until bytes arrive, so a length that is claimed but never sent costs
    no memory.
    """
    try:
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    except MemoryError as error:
        raise LimitExceeded(f"no memory for a tensor of {nbytes} bytes") from error
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    return typed(raw[start : start + nbytes], dtype, shape)


def align(offset: int) -> int:
    """The next aligned offset."""
    return (offset + ALIGNMENT - 1) & -ALIGNMENT
