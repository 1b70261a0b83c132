"""Arrays that grow: no value moves when they do, and memory is taken only where something was written."""

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem.runtime.wire.arrays import Array

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python has the name from 3.13 on
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE


class Column:
    """An array of zeros whose first axis grows.

    Args:
        shape: The shape of one entry.
        dtype: Its type.
        length: How many entries there are at first.

    Attributes:
        entry_bytes: How many bytes an entry takes.
        array: All entries. Keep no reference to it: it is another one after the column has grown.
    """

    def __init__(self, shape: Sequence[int], dtype: Any, length: int = 0) -> None:
        self._shape = tuple(shape)
        self._dtype = np.dtype(dtype)
        self.entry_bytes = self._dtype.itemsize * int(np.prod(self._shape, dtype=np.int64))
        self._whole = np.dtype((np.void, self.entry_bytes))
        self._map = mmap.mmap(-1, self._needed(length), flags=_FLAGS)
        self.array = self._view()

    def reserve(self, length: int) -> None:
        """Have room for so many entries at least; twice as many as before, if it has to grow."""
        if length > len(self.array):
            size = self._needed(max(length, 2 * len(self.array)))
            del self.array
            self._map.resize(size)
            self.array = self._view()

    def _needed(self, length: int) -> int:
        pages = -(-max(1, length) * self.entry_bytes // mmap.PAGESIZE)
        return int(pages * mmap.PAGESIZE)

    def _view(self) -> Array:
        length = len(self._map) // self.entry_bytes
        flat = np.frombuffer(self._map, np.uint8, length * self.entry_bytes)
        view: Array = flat.view(self._dtype).reshape(length, *self._shape)
        return view

    def put(self, places: Array, values: Array) -> None:
        """Set the entries in some places, each given once."""
        if self._shape:
            # Entries as single things: NumPy copies each at once, and not number by number.
            entries = np.ascontiguousarray(values, self._dtype).reshape(-1).view(self._whole)
            np.put(self.array.reshape(-1).view(self._whole), places, entries)
        else:
            self.array[places] = values

    def clear(self, first: int, last: int) -> None:
        """Give the memory of whole pages between two entries back; they are zeros again, the others are set so."""
        start, stop = first * self.entry_bytes, last * self.entry_bytes
        inner = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
        if inner[0] < inner[1]:
            self._map.madvise(mmap.MADV_DONTNEED, inner[0], inner[1] - inner[0])
            self.array[first : -(-inner[0] // self.entry_bytes)] = 0
            self.array[inner[1] // self.entry_bytes : last] = 0
        else:
            self.array[first:last] = 0
