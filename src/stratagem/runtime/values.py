"""Values on their way to and from tasks: arrays as they are, byte strings as uint8 and back."""

from typing import Any

import jax
import numpy as np

from stratagem.errors import ProtocolError

Array = np.ndarray[Any, np.dtype[Any]]


def to_array(value: Any) -> tuple[Array, bool]:
    """The value as an array, and whether it stands for a byte string.

    Numbers of 64 bits become numbers of 32, as everywhere in JAX, unless this process has enabled them.

    Example:
        >>> to_array(b"Hi")
        (array([ 72, 105], dtype=uint8), True)
    """
    if isinstance(value, bytes | bytearray):
        return np.frombuffer(bytes(value), np.uint8), True
    if isinstance(value, str):
        raise ProtocolError(
            f"text does not travel, bytes do: give {value!r}.encode(), and .decode() what comes back"
        )
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.kind in "USMm":
        raise ProtocolError(
            f"{type(value).__name__} cannot travel: give numbers, arrays of numbers, or bytes"
        )
    canonical = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    if isinstance(value, int) and int(canonical) != value:
        raise ProtocolError(
            f"{value} does not fit into {canonical.dtype}: enable 64-bit numbers (jax_enable_x64), or scale it"
        )
    return canonical, False


def from_array(array: Array, holds_bytes: bool) -> Array | bytes:
    """What `to_array` was given."""
    return array.tobytes() if holds_bytes else array
