"""Tables that are kept together, and which rows of them a batch needs.

Tables that differ in nothing but name, seed and number of rows are one stack: their rows lie in one store, under ids of
which each table has a range. So many tables cost no more calls than one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from stratagem.errors import DataError
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.lookups import Lookup
from stratagem.tables.table import Table

_FEWEST = 64
_MOST = 1 << 63


@dataclass(frozen=True, eq=False)
class Stack:
    """Tables whose rows are kept together.

    Attributes:
        tables: The tables.
        offsets: Where the ids of each begin.
        bound: The ids of all of them are below it; `None`: there is one table, of any ids.
    """

    tables: tuple[Table, ...]
    offsets: tuple[int, ...]
    bound: int | None


def stacked(tables: Sequence[Table]) -> list[Stack]:
    """The stacks of these tables, in the order of their first ones."""
    groups: dict[Any, list[Table]] = {}
    for table in tables:
        alike = (
            table.dim,
            table.dtype,
            id(table.optimizer),
            id(table.initializer),
            table.admit_after,
            table.expire_steps,
        )
        groups.setdefault(table.name if table.rows is None else alike, []).append(table)
    stacks = []
    for group in groups.values():
        ends = np.cumsum([0, *(table.rows or 0 for table in group)]).tolist()
        stacks.append(Stack(tuple(group), tuple(ends[:-1]), None if group[0].rows is None else ends[-1]))
    return stacks


class BatchRows(NamedTuple):
    """The rows that a batch needs.

    Attributes:
        ids: For each stack, the ids, each once and in order.
        places: For each look-up, where its rows are among those of its stack.
    """

    ids: list[Array]
    places: list[Array]


_Home: TypeAlias = tuple[int, Table, int]
"""Where the ids of a table are: the number of its stack, the table, and where its ids begin there."""


class BatchReader:
    """Tells which rows batches need.

    Args:
        stacks: The stacks.
    """

    def __init__(self, stacks: Sequence[Stack]) -> None:
        self._homes: dict[str, _Home] = {
            table.name: (number, table, offset)
            for number, stack in enumerate(stacks)
            for table, offset in zip(stack.tables, stack.offsets, strict=True)
        }
        self._count = len(stacks)
        self._known: dict[Any, tuple[Array, Array]] = {}

    def rows(self, lookups: Sequence[Lookup], ids: Sequence[Array]) -> BatchRows:
        """The rows that a batch needs.

        Args:
            lookups: Where rows are looked up.
            ids: The ids that each look-up asks for.

        Raises:
            DataError: An id is not of its table.
        """
        homes = [self._homes[lookup.table] for lookup in lookups]
        wanted: list[list[Array]] = [[] for _ in range(self._count)]
        for (number, _, _), own in zip(homes, ids, strict=True):
            wanted[number].append(own.reshape(-1))
        distinct, places = [], []
        for number, parts in enumerate(wanted):
            joined = np.concatenate(parts) if len(parts) > 1 else [*parts, np.empty(0, np.int64)][0]
            bound, offset = self._ranges(homes, number, parts)
            if bound is not None:
                # As numbers without a sign, those below zero are above any bound.
                if (joined.view(np.uint64) >= bound).any():
                    _check_ranges(homes, lookups, ids)
                joined = joined + offset if offset is not None else joined
            unique, inverse = numbered(joined)
            distinct.append(unique)
            places.append(inverse)
        starts = [0] * self._count
        found = []
        for (number, _, _), own in zip(homes, ids, strict=True):
            start = starts[number]
            starts[number] = start + own.size
            found.append(places[number][start : start + own.size].reshape(own.shape))
        return BatchRows(distinct, found)

    def _ranges(self, homes: Sequence[_Home], number: int, parts: Sequence[Array]) -> tuple[Any, Any]:
        """For each of the ids that are looked up in a stack: what it has to be below, and what is added to it."""
        own = [(table.rows, offset) for home, table, offset in homes if home == number and table.rows]
        if not own:
            return None, None
        if len(own) == 1:
            return np.uint64(min(own[0][0], _MOST)), own[0][1] or None
        key = number, *own, *(len(part) for part in parts)
        if key not in self._known:
            sizes = [len(part) for part in parts]
            self._known[key] = (
                np.repeat(np.array([min(rows, _MOST) for rows, _ in own], np.uint64), sizes),
                np.repeat(np.array([offset for _, offset in own], np.int64), sizes),
            )
        return self._known[key]

    def by_table(self, rows: Sequence[Any]) -> Mapping[str, Any]:
        """For each table, what there is for its stack."""
        return {name: rows[number] for name, (number, _, _) in self._homes.items()}


def padded_size(count: int) -> int:
    """For how many rows a step is compiled that needs so many: few numbers, so that few are compiled."""
    return max(_FEWEST, 1 << (count - 1).bit_length()) if count else _FEWEST


def padded(rows: Array) -> Array:
    """Rows, and zeros up to the number that steps are compiled for."""
    size = padded_size(len(rows))
    if len(rows) == size:
        return rows
    result = np.zeros((size, *rows.shape[1:]), rows.dtype)
    result[: len(rows)] = rows
    return result


def numbered(ids: Array) -> tuple[Array, Array]:
    """These ids, each once and in order, and where each of the given ones is among them."""
    bits = (len(ids) - 1).bit_length() if len(ids) else 0
    if not len(ids) or ids.view(np.uint64).max() >> np.uint64(63 - bits):
        own, inverse = np.unique(ids, return_inverse=True)
        return own, inverse.astype(np.int32)
    # To sort numbers is quicker than to tell how they would be sorted: each brings along where it came from.
    both = ids << bits
    both |= np.arange(len(ids))
    both.sort()
    places = both & ((1 << bits) - 1)
    both >>= bits
    is_first = np.empty(len(ids), bool)
    is_first[0] = True
    np.not_equal(both[1:], both[:-1], out=is_first[1:])
    numbers = np.empty(len(ids), np.int32)
    numbers[places] = np.cumsum(is_first, dtype=np.int32) - 1
    return both[is_first], numbers


def _check_ranges(homes: Sequence[_Home], lookups: Sequence[Lookup], ids: Sequence[Array]) -> None:
    for (_, table, _), lookup, own in zip(homes, lookups, ids, strict=True):
        if table.rows is not None:
            _check_range(table.name, table.rows, lookup, own)


def _check_range(name: str, rows: int, lookup: Lookup, ids: Array) -> None:
    if ids.size and (ids.min() < 0 or ids.max() >= rows):
        place = np.argwhere((ids < 0) | (ids >= rows))[0]
        where = f"{lookup.where}[{', '.join(map(str, place))}]"
        raise DataError(
            f"table {name!r} has rows={rows}, so its ids are 0 to {rows - 1}; {where} is {ids[tuple(place)]}. Give the table "
            "more rows, or rows=None for any ids"
        )
