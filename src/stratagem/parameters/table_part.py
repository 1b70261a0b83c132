"""One server's rows of the tables of a model: read, updated and copied by any thread; and all of them in files.

A base has all rows of a server's tables. It is written once in a while: snapshots then have only what has changed since. It
is written page by page while training goes on, so its rows are of different steps. Every row that has changed since the first
page was begun is in the snapshots that stand on it, as it was at their step: together they are of that step. Every snapshot
has links to the files of its base, which so go when the last snapshot goes that needs them.
"""

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stratagem.errors import ProtocolError
from stratagem.keep import ShardRecord, read_shard, write_shard
from stratagem.keep.disk import explain_errors, make_directory
from stratagem.parameters.protocol import StackConfig
from stratagem.runtime.programs import CompiledProgram
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.row_partition import merge_gradients, owners
from stratagem.tables.row_store import SIZES, Program, RowPrograms, RowScalar, RowStore
from stratagem.tables.table_files import PREFIX, NewRows, copy_rows, restore_rows, stack_label


class TablePart:
    """The rows that a server has."""

    def __init__(self, stacks: Sequence[StackConfig], programs: Mapping[str, CompiledProgram]) -> None:
        self._stacks = stacks
        self._programs = programs
        self._labels = [stack_label(stack.names) for stack in stacks]
        self._dtypes = [np.dtype(stack.spec.dtype) for stack in stacks]
        self._lock = threading.Lock()
        self._stores = self._new_stores()

    def clear(self) -> None:
        """Drop all rows."""
        self._take(self._new_stores())

    def _new_stores(self) -> list[RowStore]:
        return [_store(stack, self._programs) for stack in self._stacks]

    def _labelled(self, stores: Sequence[RowStore]) -> dict[str, RowStore]:
        return dict(zip(self._labels, stores, strict=True))

    # What workers send.

    def check(self, arrays: Sequence[Array]) -> None:
        """Raise unless arrays are ids and gradients for each stack in turn.

        Raises:
            ProtocolError: They are not.
        """
        if len(arrays) != 2 * len(self._stacks):
            raise ProtocolError(
                f"{len(arrays)} arrays for tables; give ids and gradients of {len(self._stacks)} stacks"
            )
        self.check_ids(arrays[::2])
        pairs = zip(arrays[::2], arrays[1::2], strict=True)
        for stack, dtype, (ids, gradients) in zip(self._stacks, self._dtypes, pairs, strict=True):
            if gradients.dtype != dtype or gradients.shape != (len(ids), stack.spec.dim):
                raise ProtocolError(
                    f"gradients {gradients.dtype}{list(gradients.shape)} of {len(ids)} rows of table {stack.names[0]!r}"
                )

    def check_ids(self, arrays: Sequence[Array]) -> None:
        """Raise unless arrays are ids of each stack.

        Raises:
            ProtocolError: They are not.
        """
        if len(arrays) != len(self._stacks):
            raise ProtocolError(f"ids of {len(arrays)} stacks of tables; there are {len(self._stacks)}")
        for stack, ids in zip(self._stacks, arrays, strict=True):
            if ids.dtype != np.int64 or ids.ndim != 1:
                raise ProtocolError(
                    f"ids of table {stack.names[0]!r} as {ids.dtype}{list(ids.shape)}; give int64[n]"
                )
            bound = stack.spec.bound
            # As numbers without a sign, those below zero are above any bound.
            if bound is not None and len(ids) and ids.view(np.uint64).max() >= bound:
                raise ProtocolError(f"ids of table {stack.names[0]!r} that are not below {bound}")

    def read(self, ids: Sequence[Array], reader: int | None = None) -> list[Array]:
        """Return the values of ids, for each stack; see `RowStore.read`."""
        with self._lock:
            return [store.read(own, reader) for store, own in zip(self._stores, ids, strict=True)]

    def page(self, stack: int, start: int, size: int) -> tuple[int | None, int, list[Array]]:
        """Read rows from a place on. Return the place after them if there are more, the number of all rows; ids, values, slots."""
        with self._lock:
            store = self._stores[stack]
            ids, columns = store.page(start, size)
            following = start + size if start + size < store.end else None
            return following, len(store), [ids, *columns]

    def update(self, pushes: Sequence[tuple[int, int, Sequence[Array]]], step: int) -> None:
        """Make one update.

        Args:
            pushes: Of each its worker, the number of examples, and its arrays.
            step: The step that the update makes.
        """
        with self._lock:
            for number, store in enumerate(self._stores):
                parts = [(rows, arrays[2 * number], arrays[2 * number + 1]) for _, rows, arrays in pushes]
                store.update(*merge_gradients(parts), step, pushes[0][0] if len(pushes) == 1 else None)

    # Snapshots.

    @property
    def step(self) -> int:
        """The step of the last update."""
        with self._lock:
            return max((store.step for store in self._stores), default=0)

    def copies(self, since: int = -1) -> dict[str, Array]:
        """Return copies of all rows that were updated after a step, by the names that they have in a snapshot."""
        with self._lock:
            return copy_rows(self._labelled(self._stores), since)

    def pages(self, size: int) -> Iterator[dict[str, Array]]:
        """Yield copies of all rows, at most `size` of each stack at a time; rows may change from one to the next."""
        start, has_more = 0, True
        while has_more:
            with self._lock:
                page = copy_rows(self._labelled(self._stores), -1, start, start + size)
                start += size
                has_more = any(start < store.end for store in self._stores)
            yield page

    def restore(self, arrays: Mapping[str, Array], step: int) -> None:
        """Add all rows of a snapshot, which were this server's."""
        with self._lock:
            restore_rows(self._labelled(self._stores), arrays, step)

    def prepare_rows(self, rows: NewRows, server: int, servers: int) -> Callable[[bool], bool]:
        """Read the new rows that are this server's; what this returns lets them take effect.

        Returns:
            Called with whether other rows go on from the step of those before, and share what those did; says whether there
            are other rows.

        Raises:
            ProtocolError: Rows here do not share such scalars.
            KeepError: A file is missing or damaged.
        """
        for stack, place, value in rows.scalars:
            known = self._stacks[stack].scalars if 0 <= stack < len(self._stacks) else ()
            if not 0 <= place < len(known) or (value.shape, str(value.dtype)) != known[place][:2]:
                raise ProtocolError(
                    f"scalar {place} of stack {stack} as {value.dtype}{list(value.shape)}: there is none like it"
                )
        stores = None if rows.files is None else self._new_stores()
        if rows.files is not None and stores is not None:
            rows.files.read(self._labelled(stores), lambda ids: np.asarray(owners(ids, servers) == server))
        return partial(self._take, stores, rows.scalars)

    def _take(
        self, stores: list[RowStore] | None, scalars: Sequence[RowScalar] = (), goes_on: bool = False
    ) -> bool:
        with self._lock:
            if stores is not None:
                for old, new in zip(self._stores, stores, strict=True) if goes_on else ():
                    new.step, new.scalars = old.step, old.scalars
                self._stores = stores
            for stack, place, value in scalars:
                self._stores[stack].scalars[place] = value
        return stores is not None

    def describe(self) -> list[dict[str, Any]]:
        """Describe the tables, for the status."""
        with self._lock:
            return [
                {
                    "name": ", ".join(stack.names),
                    "dim": stack.spec.dim,
                    "dtype": stack.spec.dtype,
                    **store.counts(),
                }
                for stack, store in zip(self._stacks, self._stores, strict=True)
            ]


def _store(stack: StackConfig, programs: Mapping[str, CompiledProgram]) -> RowStore:
    def by_size(hashes: Iterable[str]) -> Callable[[int], Program]:
        known = {size: programs[hash_] for size, hash_ in zip(SIZES, hashes, strict=True)}
        return lambda size: lambda arrays: known[size](arrays, wait=True)

    scalars = [np.frombuffer(data, dtype).reshape(shape) for shape, dtype, data in stack.scalars]
    return RowStore(stack.spec, RowPrograms(by_size(stack.first), by_size(stack.update)), scalars)


_BASE = f"{PREFIX}base"
_PAGE = 1 << 18
FEWEST = 1 << 16
"""The number of changed rows below which there is no need for a new base."""


class TableBase:
    """The base of one server's snapshots.

    Args:
        directory: Where the files of the present base, and of the one before, are.
        name: What the names of the files begin with.
    """

    def __init__(self, tables: TablePart, directory: Path, name: str) -> None:
        self._tables = tables
        self._directory = directory
        self._name = name
        self._base: tuple[int, tuple[ShardRecord, ...]] = (-1, ())

    def forget(self) -> None:
        """Forget the base: rows are about to be replaced."""
        self._base = -1, ()

    def differences(self) -> dict[str, Array]:
        """Return copies of all rows that have changed since the base was begun, and its description; for a snapshot."""
        step, records = self._base
        base = json.dumps([record.to_dict() for record in records]).encode()
        return {**self._tables.copies(step), _BASE: np.frombuffer(base, np.uint8)}

    def link(self, arrays: Mapping[str, Array], directory: Path) -> None:
        """Give a snapshot of these arrays its links to the files of its base."""
        for record in _base_of(arrays):
            with explain_errors(directory / record.file, "written"):
                try:
                    os.link(self._directory / record.file, directory / record.file)
                except FileExistsError:
                    pass
                except (PermissionError, NotImplementedError):  # a file system without links
                    shutil.copyfile(self._directory / record.file, directory / record.file)

    def renew_if_due(self, arrays: Mapping[str, Array]) -> None:
        """Write a new base if a snapshot of these arrays, which has just been written, had too many differences."""
        base = self._base
        records = base[1]
        known = sum(
            _rows_of({name: each.shape for name, each in record.arrays.items()}) for record in records
        )
        changed = _rows_of({name: array.shape for name, array in arrays.items()})
        if changed < max(FEWEST, known // 2):
            return
        began, present = self._tables.step, {record.file for record in records}
        with explain_errors(self._directory, "written"):
            make_directory(self._directory, durable=False)
            # Snapshots that stand on the present base may still be on their way; older ones have their links.
            for path in self._directory.iterdir():
                if path.name not in present:
                    path.unlink()
        new = tuple(
            write_shard(self._directory, f"{self._name}-{began}-{number}", page)
            for number, page in enumerate(self._tables.pages(_PAGE))
        )
        if self._base is base:  # not if rows were replaced meanwhile
            self._base = began, new

    def restore(self, arrays: Mapping[str, Array], step: int, directory: Path) -> None:
        """Restore the rows of a snapshot in a directory.

        Raises:
            KeepError: A file of its base is missing or damaged.
        """
        for record in _base_of(arrays):
            self._tables.restore(read_shard(directory, record), step)
        self._tables.restore(arrays, step)
        # The files may be on another disk by now, or gone: the next base is made by itself.
        self.forget()


def _base_of(arrays: Mapping[str, Array]) -> list[ShardRecord]:
    return [ShardRecord.from_dict(each) for each in json.loads(arrays[_BASE].tobytes())]


def _rows_of(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(shape[0] for name, shape in shapes.items() if name.endswith("/ids"))
