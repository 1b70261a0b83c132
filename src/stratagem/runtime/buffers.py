"""Host memory for values that arrive again and again: aligned as XLA wants it, and used again when free.

New memory has to be mapped page by page, which for large arrays costs as much as filling it.
"""

import math
import sys
from typing import Any

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
