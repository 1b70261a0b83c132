"""The rows of one stack of tables that one process has: values, optimizer slots, and when each id was seen.

First values and updates are computed by programs over a fixed number of rows; rows are gathered for them, padded, and put
back. Not thread-safe.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from stratagem.runtime.wire.arrays import Array, empty_aligned
from stratagem.tables.keyed_columns import KeyedColumns, mix_bits

SIZES = (256, 2048, 16384)
"""The numbers of rows for which there are programs."""
_SWEPT = 1024
"""At least this many rows are checked for expiry with every update."""


@dataclass(frozen=True)
class RowSpec:
    """The contents of each row of a store, and how long a row stays.

    Attributes:
        dim: How many numbers a row has.
        dtype: Their type.
        bound: Ids are below it; `None`: any.
        offsets: Where the ids of each table begin.
        keys: For each table, the key that first values are drawn from, with the id.
        slots: Shape and type of each slot of one row.
        admit_after: How often an id has to be seen before it is trained.
        expire_steps: After how many steps without an update a row goes; `None`: never.
    """

    dim: int
    dtype: str
    bound: int | None
    offsets: tuple[int, ...]
    keys: tuple[int, ...]
    slots: tuple[tuple[tuple[int, ...], str], ...]
    admit_after: int = 0
    expire_steps: int | None = None


Program: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""Flat arrays in, flat arrays out."""


class RowScalar(NamedTuple):
    """A value of the optimizer's state that all rows of a stack share, such as a learning rate.

    Attributes:
        stack: The stack's number.
        place: The number of the scalar in the stack.
        value: Its value.
    """

    stack: int
    place: int
    value: Any


@dataclass(frozen=True)
class RowPrograms:
    """The programs of a store, for each number of rows.

    Attributes:
        first: Computes values and slots of rows from their keys, two 32-bit words each.
        update: Computes new values, slots and scalars from the old ones, gradients and the step.
    """

    first: Callable[[int], Program]
    update: Callable[[int], Program]


class _Reading(NamedTuple):
    """The result of a read by a reader who is going to send gradients of it.

    Attributes:
        ids: The ids.
        rows: Their rows, -1 for ids without one.
        unknown: The places of the ids without a row.
        first: The first values and slots of these.
        expired: How many rows had expired by then.
    """

    ids: Array
    rows: Array
    unknown: Array
    first: list[Array]
    expired: int


class RowStore:
    """The rows of one stack.

    Args:
        spec: The contents of each row.
        programs: Computes first values and updates.
        scalars: The optimizer's state that all rows share.

    Attributes:
        scalars: The same, as it is now.
        step: The step of the last update.
    """

    def __init__(self, spec: RowSpec, programs: RowPrograms, scalars: Sequence[Any]) -> None:
        self.spec = spec
        self.scalars = [np.asarray(each) for each in scalars]
        self.step = 0
        self._programs = programs
        values = ((spec.dim,), spec.dtype), *spec.slots
        self._rows = KeyedColumns(spec.bound, [((), np.int32), *values])
        self._touched, *self._values = self._rows.columns
        self._waiting = (
            KeyedColumns(spec.bound, [((), np.int32), ((), np.int32)]) if spec.admit_after else None
        )
        self._expired = 0
        self._offsets = np.asarray(spec.offsets, np.int64)
        self._keys = np.asarray(spec.keys, np.uint64)
        self._scratch: dict[tuple[int, int], Array] = {}
        self._readings: dict[int, _Reading] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def counts(self) -> dict[str, int]:
        """Return the numbers of rows, of their bytes, of ids seen too seldom so far, and of rows that have expired."""
        waiting = 0 if self._waiting is None else len(self._waiting)
        nbytes = len(self._rows) * self._rows.row_bytes
        return {"rows": len(self._rows), "nbytes": nbytes, "waiting": waiting, "expired": self._expired}

    # Reading.

    def read(self, ids: Array, reader: int | None = None) -> Array:
        """Return the values of these ids; of an id that has no row, its first value.

        Args:
            ids: The ids, each once.
            reader: The worker that is going to send gradients of them, if one is: then `update` has less to search.
        """
        rows = self._find(ids)
        values: Array = self._values[0].array.take(rows, axis=0, mode="clip")
        unknown = np.flatnonzero(rows < 0)
        first = self._first(ids[unknown]) if unknown.size else []
        if first:
            values[unknown] = first[0]
        if reader is not None:
            self._readings[reader] = _Reading(np.array(ids), rows, unknown, first, self._expired)
        return values

    def _find(self, ids: Array) -> Array:
        """Return the row of each id; -1 if it has none, or one that has expired."""
        rows = self._rows.find(ids)
        if self.spec.expire_steps is not None:
            rows[self._is_old(self._touched.array.take(rows, mode="clip"))] = -1
        return rows

    def _first(self, ids: Array) -> list[Array]:
        """Compute the first values and slots of ids."""
        tables = np.searchsorted(self._offsets, ids, "right") - 1 if len(self._offsets) > 1 else 0
        keys = mix_bits((ids - self._offsets[tables]).view(np.uint64) ^ self._keys[tables])
        words = keys.view(np.uint32).reshape(-1, 2)
        results: list[list[Array]] = []
        for chunk, size in _chunks(len(ids)):
            columns = self._programs.first(size)([self._pad(-1, words[chunk], size)])
            results.append([np.asarray(each)[: chunk.stop - chunk.start] for each in columns])
        return [
            np.concatenate(column) if len(column) > 1 else column[0] for column in zip(*results, strict=True)
        ]

    @property
    def end(self) -> int:
        """The places of rows are below it."""
        return self._rows.end

    def page(self, start: int, size: int) -> tuple[Array, list[Array]]:
        """Return the ids, and the values and slots, of the rows in `size` places from `start` on."""
        rows = self._live_rows(start, min(start + size, self._rows.end))
        return self._rows.ids.array.take(rows), [column.array.take(rows, axis=0) for column in self._values]

    def _live_rows(self, start: int, stop: int) -> Array:
        """Return the rows between two places that are neither free nor expired."""
        touched = self._touched.array[start:stop]
        rows: Array = np.flatnonzero((touched > 0) & ~self._is_old(touched)) + start
        return rows

    # Keeping.

    def copies(self, since: int = -1, start: int = 0, stop: int | None = None) -> dict[str, Array]:
        """Return copies of rows, and of everything else that a store of the same spec needs to go on from here.

        Args:
            since: Only rows that were updated after this step.
            start: Only rows from this place on.
            stop: And below this one.
        """
        rows = self._live_rows(start, self._rows.end if stop is None else min(stop, self._rows.end))
        rows = rows[self._touched.array.take(rows) > since]
        arrays = {
            "ids": self._rows.ids.array.take(rows),
            "touched": self._touched.array.take(rows),
            **{
                f"values{place}": column.array.take(rows, axis=0) for place, column in enumerate(self._values)
            },
            **{f"scalar{place}": np.array(scalar) for place, scalar in enumerate(self.scalars)},
        }
        if self._waiting is not None:
            times_seen, last_seen = (column.array[: self._waiting.end] for column in self._waiting.columns)
            places = np.flatnonzero(last_seen)
            arrays["waiting"] = self._waiting.ids.array.take(places)
            arrays["sightings"], arrays["seen"] = times_seen.take(places), last_seen.take(places)
        return arrays

    def restore(
        self, arrays: Mapping[str, Array], step: int, is_own: Callable[[Array], Array] | None = None
    ) -> None:
        """Add rows that `copies` returned; an existing row is replaced.

        Args:
            arrays: What `copies` returned.
            step: The step of the rows.
            is_own: Tells which ids are to be added; all by default.
        """

        def choose(ids: Array) -> Array:
            return np.arange(len(ids)) if is_own is None else np.flatnonzero(is_own(ids))

        self.step = step
        ids = arrays["ids"]
        chosen = choose(ids)
        rows, _ = self._rows.find_or_add(ids[chosen])
        self._touched.array[rows] = arrays["touched"][chosen]
        for place, column in enumerate(self._values):
            column.put(rows, arrays[f"values{place}"][chosen])
        self.scalars = [np.array(arrays[f"scalar{place}"]) for place in range(len(self.scalars))]
        if self._waiting is not None:
            ids = arrays["waiting"]
            chosen = choose(ids)
            chosen = chosen[self._rows.find(ids[chosen]) < 0]
            places, _ = self._waiting.find_or_add(ids[chosen])
            for column, name in zip(self._waiting.columns, ("sightings", "seen"), strict=True):
                column.array[places] = arrays[name][chosen]

    def put(self, ids: Array, values: Array) -> None:
        """Set the values of ids; an id that has no row gets one, with the slots of a new row.

        Args:
            ids: The ids, each once.
            values: Their values.
        """
        rows = self._find(ids)
        unknown = np.flatnonzero(rows < 0)
        rows[unknown] = self._add(ids[unknown], [])
        self._values[0].put(rows, values)
        self._touched.array[rows] = max(self.step, 1)

    # Training.

    def update(self, ids: Array, gradients: Array, step: int, reader: int | None = None) -> None:
        """Make one update.

        Args:
            ids: The ids that were looked up, each once.
            gradients: Their gradients.
            step: The step that the update makes.
            reader: The worker that read them, if `read` was told.
        """
        self.step = step - 1
        rows, unknown, first = self._find_read(ids, reader)
        if unknown.size:
            admitted = self._admit(ids, unknown)
            rows[admitted] = self._add(ids[admitted], first if len(admitted) == len(unknown) else [])
            if self._waiting is not None:
                is_in = np.flatnonzero(rows >= 0)
                rows, gradients = rows[is_in], gradients[is_in]
        scalars = self.scalars
        for chunk, size in _chunks(len(rows)) or ([(slice(0, 0), SIZES[0])] if scalars else []):
            self.scalars = self._compute(rows[chunk], gradients[chunk], size, scalars, step)
        self._touched.array[rows] = step
        self.step = step
        self._sweep(max(_SWEPT, 2 * len(ids)))  # more than an update can add

    def _compute(
        self, rows: Array, gradients: Array, size: int, scalars: list[Array], step: int
    ) -> list[Array]:
        count, gathered = len(rows), []
        for place, column in enumerate(self._values):
            scratch = self._buffer(place, column.array.shape[1:], column.array.dtype, size)
            column.array.take(rows, axis=0, out=scratch[:count], mode="clip")
            gathered.append(scratch)
        padded = self._pad(len(gathered), gradients, size)
        results = self._programs.update(size)([*gathered, *scalars, padded, np.int32(step - 1)])
        for column, result in zip(self._values, results, strict=False):
            column.put(rows, np.asarray(result)[:count])
        return [np.array(each) for each in results[len(self._values) :]]

    def _find_read(self, ids: Array, reader: int | None) -> tuple[Array, Array, list[Array]]:
        """Return the row of each id, the places of ids without one, and the first values of these if they are known."""
        reading = None if reader is None else self._readings.pop(reader, None)
        if (
            reading is None
            or reading.expired != self._expired
            or self.spec.expire_steps is not None
            or not np.array_equal(reading.ids, ids)
        ):
            rows = self._find(ids)
            return rows, np.flatnonzero(rows < 0), []
        rows, unknown, first = reading.rows, reading.unknown, reading.first
        if unknown.size:
            # Updates of other readers may have added some of them since.
            rows[unknown] = rows_now = self._rows.find(ids[unknown])
            if (rows_now >= 0).any():
                unknown, first = unknown[rows_now < 0], []
        return rows, unknown, first

    def _admit(self, ids: Array, unknown: Array) -> Array:
        """Count ids without a row as seen, and return the places of those that had been seen often enough before."""
        if self._waiting is None:
            return unknown
        ids = ids[unknown]
        places, new = self._waiting.find_or_add(ids)
        times_seen, last_seen = (column.array for column in self._waiting.columns)
        times_seen[places[new]] = 0
        times_seen[places[self._is_old(last_seen.take(places))]] = 0
        is_admitted = times_seen.take(places) >= self.spec.admit_after
        times_seen[places] += 1
        last_seen[places] = np.where(is_admitted, 0, self.step + 1)
        del times_seen, last_seen
        self._waiting.remove(ids[is_admitted])
        return unknown[is_admitted]

    def _add(self, ids: Array, first: list[Array]) -> Array:
        """Return new rows for ids that have none, with their first values, which are computed if not given."""
        if self.spec.expire_steps is not None:
            self._expire(ids[self._rows.find(ids) >= 0])
        rows = self._rows.add(ids)
        if len(ids):
            for column, values in zip(self._values, first or self._first(ids), strict=True):
                column.put(rows, values)
        return rows

    def _expire(self, ids: Array) -> None:
        if len(ids):
            self._touched.array[self._rows.find(ids)] = 0
            self._rows.remove(ids)
            self._expired += len(ids)

    def _is_old(self, steps: Array) -> Array:
        """Return for each step whether an id that was last updated, or seen, then has expired; step 0 stands for never."""
        expire_steps = self.spec.expire_steps
        if expire_steps is None:
            return np.zeros(steps.shape, bool)
        return np.asarray((steps > 0) & (self.step - steps > expire_steps))

    def _sweep(self, count: int) -> None:
        """Remove the expired ones among the next `count` rows, and among the next `count` ids that have none so far."""
        if self.spec.expire_steps is None:
            return
        rows = self._rows.next_rows(count)
        self._expire(self._rows.ids.array.take(rows[self._is_old(self._touched.array.take(rows))]))
        if self._waiting is not None:
            last_seen = self._waiting.columns[1].array
            rows = self._waiting.next_rows(count)
            rows = rows[self._is_old(last_seen.take(rows))]
            last_seen[rows] = 0
            del last_seen
            self._waiting.remove(self._waiting.ids.array.take(rows))

    def _pad(self, place: int, array: Array, size: int) -> Array:
        if len(array) == size and array.ctypes.data % 64 == 0 and array.flags.c_contiguous:
            return array
        scratch = self._buffer(place, array.shape[1:], array.dtype, size)
        scratch[: len(array)] = array
        return scratch

    def _buffer(self, place: int, shape: tuple[int, ...], dtype: Any, size: int) -> Array:
        """Return memory that XLA reads in place; what earlier calls left in it beyond the rows of this one is ignored."""
        known = self._scratch.get((place, size))
        if known is None:
            dtype = np.dtype(dtype)
            nbytes = dtype.itemsize * math.prod((size, *shape))
            known = self._scratch[place, size] = empty_aligned(dtype, (size, *shape), nbytes)
            known[:] = 0
        return known


def _chunks(count: int) -> list[tuple[slice, int]]:
    """Divide this many rows into runs, each with the number of rows of the program that takes it."""
    largest = SIZES[-1]
    return [
        (slice(start, stop), next(size for size in SIZES if size >= stop - start))
        for start in range(0, count, largest)
        for stop in (min(start + largest, count),)
    ]
