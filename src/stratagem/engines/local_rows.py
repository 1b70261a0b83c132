"""Tables whose rows live in the memory of the process that trains."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from stratagem.parameters.row_updates import PlannedRows, RowUpdate, row_spec, row_updates
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.row_store import RowPrograms, RowStore
from stratagem.tables.stacks import Stack, stacked
from stratagem.tables.table import Table, check_tables
from stratagem.tables.table_files import TableFiles, copies, label


class LocalRows(PlannedRows):
    """The rows of a model's tables, in this process.

    Args:
        tables: The tables.
        optimizer: That of tables that bring none.

    Attributes:
        stacks: The tables, as they are kept together.
        stores: Their rows.
    """

    def __init__(self, tables: Sequence[Table], optimizer: Any) -> None:
        self.stacks = stacked(check_tables(tables))
        self.updates = row_updates(self.stacks, optimizer)
        self.stores = self._new_stores()

    def _new_stores(self) -> list[RowStore]:
        return [_store(stack, update) for stack, update in zip(self.stacks, self.updates, strict=True)]

    def _labelled(self, stores: Sequence[RowStore]) -> dict[str, RowStore]:
        names = [label(table.name for table in stack.tables) for stack in self.stacks]
        return dict(zip(names, stores, strict=True))

    def copies(self) -> dict[str, Array]:
        """See `RowSource`."""
        return copies(self._labelled(self.stores))

    def restore(self, files: TableFiles) -> None:
        """See `RowSource`."""
        stores = self._new_stores()
        files.read(self._labelled(stores))
        self.stores = stores

    def count(self, stack: int) -> int:
        """See `RowSource`."""
        return len(self.stores[stack])

    def read(self, stack: int, ids: Array) -> Array:
        """See `RowSource`."""
        return self.stores[stack].read(ids)

    def pages(self, stack: int, size: int) -> Iterator[tuple[Array, Sequence[Array]]]:
        """See `RowSource`."""
        store = self.stores[stack]
        return (store.page(start, size) for start in range(0, store.end, size))

    def clear(self) -> None:
        """Have no rows, and go on from the step and the shared state of the optimizer."""
        before, self.stores = self.stores, self._new_stores()
        for old, new in zip(before, self.stores, strict=True):
            new.step, new.scalars = old.step, old.scalars

    def put(self, stack: int, ids: Array, values: Array) -> None:
        """Give rows of a stack values from elsewhere."""
        self.stores[stack].put(ids, values)


def _store(stack: Stack, update: RowUpdate) -> RowStore:
    programs = RowPrograms(*(_compiled(function) for function in (update.first, update.update)))
    return RowStore(row_spec(stack, update), programs, update.scalars)


def _compiled(function: Callable[..., Any]) -> Callable[[int], Callable[[Sequence[Any]], Sequence[Any]]]:
    jitted = jax.jit(function)
    cpu = jax.local_devices(backend="cpu")[0]

    def program(arrays: Sequence[Any]) -> Sequence[Any]:
        with jax.default_device(cpu):
            results: Sequence[Any] = jax.block_until_ready(jitted(*arrays))
            return results

    return lambda size: program
