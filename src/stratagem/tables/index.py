"""Where the row of an id is: found for many ids at once."""

from abc import ABC, abstractmethod

import numpy as np

from stratagem.runtime.wire.arrays import Array
from stratagem.tables.columns import Column

MOST_DIRECT = 1 << 27
"""Up to so many ids, an index has a place for each."""
_SEGMENT_BITS = 8
_SEGMENTS = 1 << _SEGMENT_BITS
_FIRST_CAPACITY = 64
_FULLEST = 3
"""A segment grows when more than one of so many of its places are taken."""
_GONE = -1


class Index(ABC):
    """The row of each id that has one. Ids are given once each, as signed 64-bit integers."""

    @abstractmethod
    def find(self, ids: Array) -> Array:
        """The row of each id; -1 where there is none."""

    @abstractmethod
    def add(self, ids: Array, rows: Array) -> None:
        """Let ids that have no row have these, which are theirs in the column of ids already."""

    @abstractmethod
    def remove(self, ids: Array) -> None:
        """Let ids have no row any more; the column still has them."""


class DirectIndex(Index):
    """For ids below a bound: one place for each.

    Args:
        bound: The bound.
    """

    def __init__(self, bound: int) -> None:
        self._places = Column((), np.int32, bound)

    def find(self, ids: Array) -> Array:
        """See `Index`."""
        rows: Array = self._places.array.take(ids)
        rows -= 1
        return rows

    def add(self, ids: Array, rows: Array) -> None:
        """See `Index`."""
        self._places.array[ids] = rows + 1

    def remove(self, ids: Array) -> None:
        """See `Index`."""
        self._places.array[ids] = 0


class HashIndex(Index):
    """For any ids: a hash table of segments, which grow one by one so that no growth takes long.

    Args:
        ids: The id of each row.
    """

    def __init__(self, ids: Column) -> None:
        self._ids = ids
        self._places = Column((), np.int32, _SEGMENTS * _FIRST_CAPACITY)
        self._base = np.arange(_SEGMENTS, dtype=np.int64) * _FIRST_CAPACITY
        self._mask = np.full(_SEGMENTS, _FIRST_CAPACITY - 1, np.int64)
        self._taken = np.zeros(_SEGMENTS, np.int64)
        self._end = _SEGMENTS * _FIRST_CAPACITY

    def find(self, ids: Array) -> Array:
        """See `Index`."""
        rows, _ = self._search(ids)
        return rows

    def add(self, ids: Array, rows: Array) -> None:
        """See `Index`."""
        segments, _ = _hashed(ids)
        added = np.bincount(segments, minlength=_SEGMENTS)
        for segment in np.flatnonzero((self._taken + added) * _FULLEST > self._mask):
            self._make_room(int(segment), int(added[segment]))
        self._taken += added
        self._insert(ids, rows)

    def remove(self, ids: Array) -> None:
        """See `Index`."""
        rows, places = self._search(ids)
        self._places.array[places[rows >= 0]] = _GONE

    def _search(self, ids: Array) -> tuple[Array, Array]:
        """The row of each id, and its place in the hash table."""
        segments, hashes = _hashed(ids)
        base, mask = self._base.take(segments), self._mask.take(segments)
        places = base + (hashes & mask)
        table, known = self._places.array, self._ids.array
        rows: Array = table.take(places)
        rows -= 1
        left = np.flatnonzero((rows != -1) & (known.take(rows, mode="clip") != ids) | (rows < -1))
        while left.size:
            hashes[left] += 1
            further = base[left] + (hashes[left] & mask[left])
            places[left] = further
            found = table.take(further)
            found -= 1
            rows[left] = found
            left = left[(found != -1) & (known.take(found, mode="clip") != ids[left]) | (found < -1)]
        return rows, places

    def _insert(self, ids: Array, rows: Array) -> None:
        """Give rows to ids that are not there."""
        segments, hashes = _hashed(ids)
        base, mask = self._base.take(segments), self._mask.take(segments)
        table, entries = self._places.array, rows + 1
        left = np.arange(len(ids))
        while left.size:
            places = base[left] + (hashes[left] & mask[left])
            free = table.take(places) == 0
            table[places[free]] = entries[left[free]]
            left = left[table.take(places) != entries[left]]  # of several at one place, one has it
            hashes[left] += 1

    def _make_room(self, segment: int, added: int) -> None:
        """Let those that are gone leave their places in a segment, and give it a larger one if that is not enough."""
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
        self._taken[segment] = len(rows)
        self._insert(self._ids.array.take(rows), rows)


def _hashed(ids: Array) -> tuple[Array, Array]:
    """For each id its segment, and where in it to look first, modulo its size."""
    bits = mixed(ids.view(np.uint64))
    segments = (bits >> np.uint64(64 - _SEGMENT_BITS)).astype(np.int64)
    return segments, (bits >> np.uint64(16) & np.uint64((1 << 40) - 1)).astype(np.int64)


def mixed(words: Array) -> Array:
    """Every word's bits spread over all of another one; no two words become the same."""
    bits: Array = (words ^ (words >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    bits ^= bits >> np.uint64(32)
    bits *= np.uint64(0xD6E8FEB86659FD93)
    bits ^= bits >> np.uint64(32)
    return bits
