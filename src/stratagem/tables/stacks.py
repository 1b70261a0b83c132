"""Tables that are kept together, and which rows of them a batch needs.

Tables that differ in nothing but name, seed and number of rows are one stack: their rows lie in one store, under ids of
which each table has a range. So many tables cost no more calls than one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from stratagem.errors import DataError
from stratagem.tables.lookups import Lookup
from stratagem.tables.table import Table

Array: TypeAlias = np.ndarray[Any, Any]
_FEWEST = 64


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


class BatchReader:
    """Tells which rows batches need.

    Args:
        stacks: The stacks.
    """

    def __init__(self, stacks: Sequence[Stack]) -> None:
        self._homes = {
            table.name: (number, table, offset)
            for number, stack in enumerate(stacks)
            for table, offset in zip(stack.tables, stack.offsets, strict=True)
        }
        self._count = len(stacks)

    def rows(self, lookups: Sequence[Lookup], ids: Sequence[Array]) -> BatchRows:
        """The rows that a batch needs.

        Args:
            lookups: Where rows are looked up.
            ids: The ids that each look-up asks for.

        Raises:
            DataError: An id is not of its table.
        """
        wanted: list[list[Array]] = [[] for _ in range(self._count)]
        homes = [self._homes[lookup.table] for lookup in lookups]
        for (number, table, offset), lookup, own in zip(homes, lookups, ids, strict=True):
            if table.rows is not None:
                _check_range(table.name, table.rows, lookup, own)
            wanted[number].append(own.reshape(-1) + offset if offset else own.reshape(-1))
        distinct, places = [], []
        for parts in wanted:
            joined = np.concatenate(parts) if parts else np.empty(0, np.int64)
            unique, inverse = np.unique(joined, return_inverse=True)
            distinct.append(unique)
            places.append(inverse.astype(np.int32))
        starts = [0] * self._count
        found = []
        for (number, _, _), own in zip(homes, ids, strict=True):
            start = starts[number]
            starts[number] = start + own.size
            found.append(places[number][start : start + own.size].reshape(own.shape))
        return BatchRows(distinct, found)

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


def _check_range(name: str, rows: int, lookup: Lookup, ids: Array) -> None:
    if ids.size and (ids.min() < 0 or ids.max() >= rows):
        place = np.argwhere((ids < 0) | (ids >= rows))[0]
        where = f"{lookup.where}[{', '.join(map(str, place))}]"
        raise DataError(
            f"table {name!r} has rows={rows}, so its ids are 0 to {rows - 1}; {where} is {ids[tuple(place)]}. Give the table "
            "more rows, or rows=None for any ids"
        )
