"""Tables that are kept together, and the rows of them that a batch needs.

Tables that differ only in name, seed and number of rows form one stack: one store has their rows, and each table has a
range of its ids. So many tables cost no more calls than one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from stratagem.errors import DataError
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.lookups import Lookup
from stratagem.tables.table import Table

_FEWEST_ROWS = 64
_MOST_IDS = 1 << 63


@dataclass(frozen=True, eq=False)
class Stack:
    """Tables whose rows are kept together.

    Attributes:
        tables: The tables.
        offsets: Where the ids of each begin.
        bound: All ids are below it; `None`: there is one table, of any ids.
    """

    tables: tuple[Table, ...]
    offsets: tuple[int, ...]
    bound: int | None


def stack_tables(tables: Sequence[Table]) -> list[Stack]:
    """Return the stacks of these tables, in the order of their first tables."""
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


_Placement: TypeAlias = tuple[int, Table, int]
"""Where a table is: the number of its stack, the table, and where its ids begin in the stack."""


class BatchReader:
    """Finds the rows of stacks that batches need."""

    def __init__(self, stacks: Sequence[Stack]) -> None:
        self._placements: dict[str, _Placement] = {
            table.name: (number, table, offset)
            for number, stack in enumerate(stacks)
            for table, offset in zip(stack.tables, stack.offsets, strict=True)
        }
        self._count = len(stacks)
        self._known: dict[Any, tuple[Array, Array]] = {}

    def rows(self, lookups: Sequence[Lookup], ids: Sequence[Array]) -> BatchRows:
        """Return the rows that a batch needs.

        Args:
            lookups: Where rows are looked up.
            ids: The ids of each look-up.

        Raises:
            DataError: An id is not of its table.
        """
        placements = [self._placements[lookup.table] for lookup in lookups]
        wanted: list[list[Array]] = [[] for _ in range(self._count)]
        for (number, _, _), own in zip(placements, ids, strict=True):
            wanted[number].append(own.reshape(-1))
        distinct, places = [], []
        for number, parts in enumerate(wanted):
            joined = np.concatenate(parts) if len(parts) > 1 else [*parts, np.empty(0, np.int64)][0]
            bound, offset = self._ranges(placements, number, parts)
            if bound is not None:
                # As unsigned numbers, negative ids are above any bound.
                if (joined.view(np.uint64) >= bound).any():
                    _check_ranges(placements, lookups, ids)
                joined = joined + offset if offset is not None else joined
            unique, inverse = unique_ids(joined)
            distinct.append(unique)
            places.append(inverse)
        starts = [0] * self._count
        by_lookup = []
        for (number, _, _), own in zip(placements, ids, strict=True):
            start = starts[number]
            starts[number] = start + own.size
            by_lookup.append(places[number][start : start + own.size].reshape(own.shape))
        return BatchRows(distinct, by_lookup)

    def _ranges(
        self, placements: Sequence[_Placement], number: int, parts: Sequence[Array]
    ) -> tuple[Any, Any]:
        """Return bounds and offsets of all ids that are looked up in a stack, or one of each for them all."""
        own = [(table.rows, offset) for stack, table, offset in placements if stack == number and table.rows]
        if not own:
            return None, None
        if len(own) == 1:
            return np.uint64(min(own[0][0], _MOST_IDS)), own[0][1] or None
        key = number, *own, *(len(part) for part in parts)
        if key not in self._known:
            sizes = [len(part) for part in parts]
            self._known[key] = (
                np.repeat(np.array([min(rows, _MOST_IDS) for rows, _ in own], np.uint64), sizes),
                np.repeat(np.array([offset for _, offset in own], np.int64), sizes),
            )
        return self._known[key]

    def by_table(self, rows: Sequence[Any]) -> Mapping[str, Any]:
        """Return for each table the rows of its stack."""
        return {name: rows[number] for name, (number, _, _) in self._placements.items()}


def padded_size(count: int) -> int:
    """Return the number of rows that a step is compiled for which needs `count`: one of few, so that few are compiled."""
    return max(_FEWEST_ROWS, 1 << (count - 1).bit_length()) if count else _FEWEST_ROWS


def pad_rows(rows: Array) -> Array:
    """Return rows followed by zeros, up to the number that steps are compiled for."""
    size = padded_size(len(rows))
    if len(rows) == size:
        return rows
    result = np.zeros((size, *rows.shape[1:]), rows.dtype)
    result[: len(rows)] = rows
    return result


def unique_ids(ids: Array) -> tuple[Array, Array]:
    """Return these ids, each once and in order, and the place of each given id among them."""
    bits = (len(ids) - 1).bit_length() if len(ids) else 0
    if not len(ids) or ids.view(np.uint64).max() >> np.uint64(63 - bits):
        own, inverse = np.unique(ids, return_inverse=True)
        return own, inverse.astype(np.int32)
    # Sorting numbers is faster than an argsort, so the low bits of each say where it came from.
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


def _check_ranges(placements: Sequence[_Placement], lookups: Sequence[Lookup], ids: Sequence[Array]) -> None:
    for (_, table, _), lookup, own in zip(placements, lookups, ids, strict=True):
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
