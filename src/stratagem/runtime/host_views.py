"""Arrays of JAX's as NumPy sees them in place, without keeping JAX from reusing their memory later."""

import ctypes
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
