"""Host memory that XLA and NumPy share: buffers for values that arrive again and again, and views of JAX arrays."""

import ctypes
import math
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.runtime.wire import empty_aligned
from stratagem.runtime.wire.arrays import Array

_ONLY_OURS = 3
"""References to a buffer that nobody else holds: the list's, the loop's and the count's own."""
_PACKED = frozenset(np.dtype(kind) for kind in (jnp.int2, jnp.uint2, jnp.int4, jnp.uint4, jnp.float4_e2m1fn))
"""Elements of less than a byte, which JAX and NumPy lay out differently."""
_MOST_PLACES = 16
"""Views to remember per variable: large variables alternate between two places in memory, small ones may have any number."""


class Buffers:
    """The buffers behind one variable's past values: one is in use, another takes the next value.

    New memory has to be mapped page by page, which for large arrays costs as much as filling it. JAX reads an aligned NumPy
    array in place and holds a reference to it meanwhile, so a buffer without other references is free.

    Args:
        most: How many to keep.
    """

    def __init__(self, most: int = 2) -> None:
        self._most = most
        self._buffers: list[Array] = []

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return memory that nobody uses, with undefined content."""
        for buffer in self._buffers:
            if buffer.shape == shape and buffer.dtype == dtype and sys.getrefcount(buffer) <= _ONLY_OURS:
                return buffer
        buffer = empty_aligned(dtype, shape, math.prod(shape) * dtype.itemsize)
        self._buffers = [*self._buffers[-self._most + 1 :], buffer]
        return buffer

    def copy(self, value: Array) -> Array:
        """Return a copy of the value in such memory; others must not write to it."""
        buffer = self.take(value.shape, value.dtype)
        np.copyto(buffer, value)
        return buffer


def _is_in_place(array: jax.Array) -> bool:
    return next(iter(array.devices())).platform == "cpu" and array.dtype not in _PACKED and array.nbytes > 0


def host_view(array: jax.Array) -> Array:
    """Return the array's values: on CPU in place, elsewhere copied to the host.

    `np.asarray` would keep its result with the array for as long as that lives, and an array that NumPy can see is copied
    when it is donated. This view does not hold its memory: it is good only while the caller sees to it that the array is
    neither donated nor let go of.
    """
    if not _is_in_place(array):
        return np.asarray(array)
    memory = (ctypes.c_byte * array.nbytes).from_address(array.unsafe_buffer_pointer())
    view: Array = np.ctypeslib.as_array(memory).view(array.dtype)
    return view.reshape(array.shape)


class HostViews:
    """Views of the same variables after every update, made once for each place in memory that a variable has.

    A variable's shape and dtype never change.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Array] = {}

    def of(self, arrays: Sequence[jax.Array]) -> list[Array]:
        """Return the values of the first variables now, as `host_view` does."""
        views = []
        for number, array in enumerate(arrays):
            place = number, array.unsafe_buffer_pointer()
            view = self._known.get(place)
            views.append(self._view(place, array) if view is None else view)
        if len(self._known) > _MOST_PLACES * len(views):
            self._known.clear()
        return views

    def _view(self, place: tuple[int, int], array: jax.Array) -> Array:
        view = host_view(array)
        if _is_in_place(array):
            self._known[place] = view
        return view
