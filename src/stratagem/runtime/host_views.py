"""Arrays of JAX's as NumPy sees them in place, without keeping JAX from reusing their memory later."""

import ctypes
from typing import Any

import jax
import numpy as np

_PACKED_KINDS = {"int1", "uint1", "int2", "uint2", "int4", "uint4", "float4_e2m1fn"}
"""Elements of less than a byte, which JAX and NumPy lay out differently."""


def host_view(array: jax.Array) -> np.ndarray[Any, np.dtype[Any]]:
    """The array's values; on CPU in place, elsewhere copied to the host.

    `np.asarray` would keep its result with the array for as long as that lives, and an array that NumPy can see
    is copied when it is donated. This view does not hold its memory: it is good only as long as the caller sees to
    it that the array is neither donated nor let go of.
    """
    if (
        next(iter(array.devices())).platform != "cpu"
        or array.dtype.name in _PACKED_KINDS
        or array.nbytes == 0
    ):
        return np.asarray(array)
    memory = (ctypes.c_byte * array.nbytes).from_address(array.unsafe_buffer_pointer())
    view: np.ndarray[Any, np.dtype[Any]] = np.ctypeslib.as_array(memory).view(array.dtype)
    return view.reshape(array.shape)
