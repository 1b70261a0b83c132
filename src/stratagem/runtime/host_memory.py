"""Host memory for values that arrive again and again: aligned as XLA wants it, and used again when free.

New memory has to be mapped page by page, which for large arrays costs as much as filling it.


Arrays of JAX's as NumPy sees them in place, without keeping JAX from reusing their memory later.
"""

import ctypes
import math
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.runtime.wire import empty_aligned

_ONLY_OURS = 3
"""References to a buffer that nobody else holds: the list's, the loop's and the count's own."""


class Buffers:
    """The buffers behind one variable's past values: one is in use, another takes the next value.

    JAX reads an aligned NumPy array in place and holds a reference to it for as long as it does, so a buffer
    without other references is free.

    Args:
        most: How many to keep.
    """

    def __init__(self, most: int = 2) -> None:
        self._most = most
        self._kept: list[np.ndarray[Any, np.dtype[Any]]] = []

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
        """Memory that nobody uses, with anything in it."""
        for buffer in self._kept:
            if buffer.shape == shape and buffer.dtype == dtype and sys.getrefcount(buffer) <= _ONLY_OURS:
                return buffer
        buffer = empty_aligned(dtype, shape, math.prod(shape) * dtype.itemsize)
        self._kept = [*self._kept[-self._most + 1 :], buffer]
        return buffer

    def copy(self, value: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
        """The value in memory of our own; it is not to be written to by others."""
        buffer = self.take(value.shape, value.dtype)
        np.copyto(buffer, value)
        return buffer


_PACKED = frozenset(np.dtype(kind) for kind in (jnp.int2, jnp.uint2, jnp.int4, jnp.uint4, jnp.float4_e2m1fn))
"""Elements of less than a byte, which JAX and NumPy lay out differently."""
_MOST_PLACES = 16
"""Views to remember for each variable: large ones have two places in memory in turn, small ones any number."""


def _is_in_place(array: jax.Array) -> bool:
    return next(iter(array.devices())).platform == "cpu" and array.dtype not in _PACKED and array.nbytes > 0


def host_view(array: jax.Array) -> np.ndarray[Any, np.dtype[Any]]:
    """The array's values; on CPU in place, elsewhere copied to the host.

    `np.asarray` would keep its result with the array for as long as that lives, and an array that NumPy can see
    is copied when it is donated. This view does not hold its memory: it is good only as long as the caller sees to
    it that the array is neither donated nor let go of.
    """
    if not _is_in_place(array):
        return np.asarray(array)
    memory = (ctypes.c_byte * array.nbytes).from_address(array.unsafe_buffer_pointer())
    view: np.ndarray[Any, np.dtype[Any]] = np.ctypeslib.as_array(memory).view(array.dtype)
    return view.reshape(array.shape)


class HostViews:
    """Views of the same variables after every update, made once for each place in memory that a variable has.

    A variable's shape and dtype never change.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], np.ndarray[Any, np.dtype[Any]]] = {}

    def of(self, arrays: Sequence[jax.Array]) -> list[np.ndarray[Any, np.dtype[Any]]]:
        """The first variables as they are now; see `host_view`."""
        views = []
        for number, array in enumerate(arrays):
            place = number, array.unsafe_buffer_pointer()
            view = self._known.get(place)
            views.append(self._view(place, array) if view is None else view)
        if len(self._known) > _MOST_PLACES * len(views):
            self._known.clear()
        return views

    def _view(self, place: tuple[int, int], array: jax.Array) -> np.ndarray[Any, np.dtype[Any]]:
        view = host_view(array)
        if _is_in_place(array):
            self._known[place] = view
        return view
