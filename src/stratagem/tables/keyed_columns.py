"""Columns whose rows belong to ids: an index that says where the row of an id is, over arrays that grow."""

import mmap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem.runtime.wire.arrays import Array

MOST_DIRECT = 1 << 27
"""Up to this many ids, an index has a place for each of them."""
_SEGMENT_BITS = 8
_SEGMENTS = 1 << _SEGMENT_BITS
_FIRST_CAPACITY = 64
_FULLEST = 3
"""A segment grows when more than one in this many of its places are taken."""
_GONE = -1
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python has the name from 3.13 on
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE


class GrowingArray:
    """An array of zeros whose first axis grows: no value moves, and memory is taken only where something was written.

    Args:
        shape: The shape of one entry.
        dtype: The type of its numbers.
        length: How many entries there are at first.

    Attributes:
        entry_bytes: How many bytes an entry takes.
        array: All entries. Keep no reference to it: growing replaces it.
    """

    def __init__(self, shape: Sequence[int], dtype: Any, length: int = 0) -> None:
        self._shape = tuple(shape)
        self._dtype = np.dtype(dtype)
        self.entry_bytes = self._dtype.itemsize * int(np.prod(self._shape, dtype=np.int64))
        self._entry_dtype = np.dtype((np.void, self.entry_bytes))
        self._map = mmap.mmap(-1, self._map_bytes(length), flags=_FLAGS)
        self.array = self._view()

    def reserve(self, length: int) -> None:
        """Make room for at least this many entries; an array that has to grow at least doubles."""
        if length > len(self.array):
            size = self._map_bytes(max(length, 2 * len(self.array)))
            del self.array
            self._map.resize(size)
            self.array = self._view()

    def _map_bytes(self, length: int) -> int:
        pages = -(-max(1, length) * self.entry_bytes // mmap.PAGESIZE)
        return int(pages * mmap.PAGESIZE)

    def _view(self) -> Array:
        length = len(self._map) // self.entry_bytes
        flat = np.frombuffer(self._map, np.uint8, length * self.entry_bytes)
        view: Array = flat.view(self._dtype).reshape(length, *self._shape)
        return view

    def put(self, places: Array, values: Array) -> None:
        """Set the entries in these places, each given once."""
        if self._shape:
            # With entries as single items NumPy copies each at once, not number by number.
            entries = np.ascontiguousarray(values, self._dtype).reshape(-1).view(self._entry_dtype)
            np.put(self.array.reshape(-1).view(self._entry_dtype), places, entries)
        else:
            self.array[places] = values

    def clear(self, first: int, last: int) -> None:
        """Set the entries between two places to zero, and give the memory of whole pages among them back."""
        start, stop = first * self.entry_bytes, last * self.entry_bytes
        inner = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
        if inner[0] < inner[1]:
            self._map.madvise(mmap.MADV_DONTNEED, inner[0], inner[1] - inner[0])
            self.array[first : -(-inner[0] // self.entry_bytes)] = 0
            self.array[inner[1] // self.entry_bytes : last] = 0
        else:
            self.array[first:last] = 0


class Index(ABC):
    """The rows of ids, for many ids at once. Ids are given once each, as signed 64-bit integers."""

    @abstractmethod
    def find(self, ids: Array) -> Array:
        """Return the row of each id; -1 where there is none."""

    @abstractmethod
    def add(self, ids: Array, rows: Array) -> None:
        """Assign rows to ids that have none; the column of ids has them in these rows already."""

    @abstractmethod
    def remove(self, ids: Array) -> None:
        """Forget the rows of ids; the column still has the ids."""


class DirectIndex(Index):
    """For ids below a bound: one place for each."""

    def __init__(self, bound: int) -> None:
        self._places = GrowingArray((), np.int32, bound)

    def find(self, ids: Array) -> Array:
        rows: Array = self._places.array.take(ids)
        rows -= 1
        return rows

    def add(self, ids: Array, rows: Array) -> None:
        self._places.array[ids] = rows + 1

    def remove(self, ids: Array) -> None:
        self._places.array[ids] = 0


class HashIndex(Index):
    """For any ids: a hash table of segments, which grow one by one so that no growth takes long.

    Args:
        ids: The id of each row.
    """

    def __init__(self, ids: GrowingArray) -> None:
        self._ids = ids
        self._places = GrowingArray((), np.int32, _SEGMENTS * _FIRST_CAPACITY)
        self._base = np.arange(_SEGMENTS, dtype=np.int64) * _FIRST_CAPACITY
        self._mask = np.full(_SEGMENTS, _FIRST_CAPACITY - 1, np.int64)
        self._used = np.zeros(_SEGMENTS, np.int64)
        self._end = _SEGMENTS * _FIRST_CAPACITY

    def find(self, ids: Array) -> Array:
        return self._search(ids)[0]

    def add(self, ids: Array, rows: Array) -> None:
        segments, hashes = _hash(ids)
        added = np.bincount(segments, minlength=_SEGMENTS)
        for segment in np.flatnonzero((self._used + added) * _FULLEST > self._mask):
            self._make_room(int(segment), int(added[segment]))
        self._used += added
        self._insert(segments, hashes, rows)

    def remove(self, ids: Array) -> None:
        rows, places = self._search(ids)
        self._places.array[places[rows >= 0]] = _GONE

    def _search(self, ids: Array) -> tuple[Array, Array]:
        """Return the row of each id, and its place in the hash table."""
        segments, hashes = _hash(ids)
        base, mask = self._base.take(segments), self._mask.take(segments)
        places = base + (hashes & mask)
        table, known = self._places.array, self._ids.array
        rows: Array = table.take(places)
        rows -= 1
        left = np.flatnonzero((rows != -1) & (known.take(rows, mode="clip") != ids) | (rows < -1))
        while left.size:
            hashes[left] += 1
            next_places = base[left] + (hashes[left] & mask[left])
            places[left] = next_places
            next_rows = table.take(next_places)
            next_rows -= 1
            rows[left] = next_rows
            is_other = (next_rows != -1) & (known.take(next_rows, mode="clip") != ids[left])
            left = left[is_other | (next_rows < -1)]
        return rows, places

    def _insert(self, segments: Array, hashes: Array, rows: Array) -> None:
        """Assign rows to ids that are not in the hash table, given their hashes, which are changed."""
        base, mask = self._base.take(segments), self._mask.take(segments)
        table, entries = self._places.array, rows + 1
        left = np.arange(len(rows))
        while left.size:
            places = base[left] + (hashes[left] & mask[left])
            free = table.take(places) == 0
            table[places[free]] = entries[left[free]]
            left = left[table.take(places) != entries[left]]  # of several ids at one place, one gets it
            hashes[left] += 1

    def _make_room(self, segment: int, added: int) -> None:
        """Drop the removed ids of a segment, and move it to a larger one if that is not enough."""
        base, size = int(self._base[segment]), int(self._mask[segment]) + 1
        entries = self._places.array[base : base + size]
        rows = entries[entries > 0] - 1
        del entries
        capacity = size
        while (len(rows) + added) * _FULLEST * 3 > capacity * 2:  # so that it is not full again at once
            capacity *= 2
        self._places.clear(base, base + size)
        if capacity > size:
            self._places.reserve(self._end + capacity)
            self._base[segment], self._mask[segment] = self._end, capacity - 1
            self._end += capacity
        self._used[segment] = len(rows)
        self._insert(*_hash(self._ids.array.take(rows)), rows)


def _hash(ids: Array) -> tuple[Array, Array]:
    """Return for each id its segment, and the place to search first in it, modulo the segment's size."""
    bits = mix_bits(ids.view(np.uint64))
    segments = (bits >> np.uint64(64 - _SEGMENT_BITS)).astype(np.int64)
    return segments, (bits >> np.uint64(16) & np.uint64((1 << 40) - 1)).astype(np.int64)


def mix_bits(words: Array) -> Array:
    """Spread the bits of each word over another word; different words stay different."""
    bits: Array = (words ^ (words >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    bits ^= bits >> np.uint64(32)
    bits *= np.uint64(0xD6E8FEB86659FD93)
    bits ^= bits >> np.uint64(32)
    return bits


class KeyedColumns:
    """One row for each id that was added. Ids are given once each, as signed 64-bit integers.

    Args:
        bound: Ids are from 0 and below it; `None`: any.
        columns: Shape and type of an entry of each column.

    Attributes:
        ids: The id of each row.
        columns: The columns. A new row has in them whatever the last row in its place had.
        end: Rows are below it; some of these may be free.
    """

    def __init__(self, bound: int | None, columns: Sequence[tuple[Sequence[int], Any]]) -> None:
        self.ids = GrowingArray((), np.int64)
        self.columns = [GrowingArray(shape, dtype) for shape, dtype in columns]
        self._index: Index = (
            HashIndex(self.ids) if bound is None or bound > MOST_DIRECT else DirectIndex(bound)
        )
        self.end = 0
        self._free: list[Array] = []
        self._num_free = 0
        self._turn = 0

    def __len__(self) -> int:
        return self.end - self._num_free

    @property
    def row_bytes(self) -> int:
        """The number of bytes of one row."""
        return sum(column.entry_bytes for column in (self.ids, *self.columns))

    def find(self, ids: Array) -> Array:
        """Return the row of each id; -1 where there is none."""
        return self._index.find(ids)

    def add(self, ids: Array) -> Array:
        """Return new rows for ids that have none."""
        rows = self._allocate(len(ids))
        self.ids.array[rows] = ids
        self._index.add(ids, rows)
        return rows

    def find_or_add(self, ids: Array) -> tuple[Array, Array]:
        """Return the row of each id, and the places of those ids that had none before."""
        rows = self.find(ids)
        new = np.flatnonzero(rows < 0)
        rows[new] = self.add(ids[new])
        return rows, new

    def remove(self, ids: Array) -> None:
        """Free the rows of ids."""
        rows = self._index.find(ids)
        self._index.remove(ids)
        self._free.append(rows)
        self._num_free += len(rows)

    def next_rows(self, count: int) -> Array:
        """Return this many rows, free ones among them: those that follow the last call's, in a circle."""
        count, end = min(count, self.end), max(1, self.end)
        rows: Array = (np.arange(self._turn, self._turn + count) % end).astype(np.int32)
        self._turn = (self._turn + count) % end
        return rows

    def _allocate(self, count: int) -> Array:
        parts: list[Array] = []
        while self._free and count:
            free = self._free.pop()
            if len(free) > count:
                self._free.append(free[count:])
                free = free[:count]
            parts.append(free)
            count -= len(free)
            self._num_free -= len(free)
        for column in (self.ids, *self.columns):
            column.reserve(self.end + count)
        parts.append(np.arange(self.end, self.end + count, dtype=np.int32))
        self.end += count
        return np.concatenate(parts) if len(parts) > 1 else parts[0]
