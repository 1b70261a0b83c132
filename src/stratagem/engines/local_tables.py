"""Tables whose rows live in the memory of the process that trains, and the steps that train them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from stratagem.engines.engine import Engine, Step
from stratagem.engines.replicas import Replicas
from stratagem.engines.rows import count_rows
from stratagem.engines.table_trainables import ROW_GRADIENTS, TableTrainable
from stratagem.parameters.row_updates import PlannedRows, RowUpdate, row_spec, row_updates
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.row_function import RowBatch
from stratagem.tables.row_store import RowPrograms, RowStore
from stratagem.tables.stacks import Stack, pad_rows, stack_tables
from stratagem.tables.table import Table, check_tables
from stratagem.tables.table_files import TableFiles, copy_rows, stack_label
from stratagem.waist import Metrics, TrainState


class LocalRows(PlannedRows):
    """The rows of a model's tables, in this process.

    Args:
        tables: The tables.
        optimizer: The optimizer of tables that bring none.

    Attributes:
        stacks: The tables, as they are kept together.
        stores: Their rows.
    """

    def __init__(self, tables: Sequence[Table], optimizer: Any) -> None:
        self.stacks = stack_tables(check_tables(tables))
        self.updates = row_updates(self.stacks, optimizer)
        self.stores = self._new_stores()

    def _new_stores(self) -> list[RowStore]:
        return [_store(stack, update) for stack, update in zip(self.stacks, self.updates, strict=True)]

    def _by_label(self, stores: Sequence[RowStore]) -> dict[str, RowStore]:
        labels = [stack_label(table.name for table in stack.tables) for stack in self.stacks]
        return dict(zip(labels, stores, strict=True))

    def copies(self) -> dict[str, Array]:
        return copy_rows(self._by_label(self.stores))

    def restore(self, files: TableFiles) -> None:
        stores = self._new_stores()
        files.read(self._by_label(stores))
        self.stores = stores

    def count(self, stack: int) -> int:
        return len(self.stores[stack])

    def read(self, stack: int, ids: Array) -> Array:
        return self.stores[stack].read(ids)

    def pages(self, stack: int, size: int) -> Iterator[tuple[Array, Sequence[Array]]]:
        store = self.stores[stack]
        return (store.page(start, size) for start in range(0, store.end, size))

    def clear(self) -> None:
        """Remove all rows, and keep the step and the shared state of the optimizer."""
        before, self.stores = self.stores, self._new_stores()
        for old, new in zip(before, self.stores, strict=True):
            new.step, new.scalars = old.step, old.scalars

    def put(self, stack: int, ids: Array, values: Array) -> None:
        """Set the values of rows of a stack."""
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


# Steps.


class TableSteps:
    """The parts of a step that trains a model whose variables and tables are both in this process.

    Args:
        engine: The engine that trains the variables.
        trainable: The model.

    Attributes:
        dense: Trains the variables on a batch and its rows, whose gradients it returns among the metrics.
    """

    def __init__(self, engine: Engine, trainable: TableTrainable) -> None:
        self.dense = engine.build(trainable)
        self._trainable = trainable
        self._replicas = engine.replicas

    def look_up(self, state: TrainState, batch: Any) -> tuple[RowBatch, list[Array]]:
        """Return a batch of the host with the rows that it needs, and their ids."""
        needed = self._trainable.needed(state.flat_params, batch, lambda: state.rng)
        stores = _rows(state).stores
        rows = [pad_rows(store.read(ids)) for store, ids in zip(stores, needed.ids, strict=True)]
        return place_rows(self._replicas, batch, rows, needed.places), needed.ids

    def update(self, state: TrainState, ids: Sequence[Array], metrics: Metrics) -> Metrics:
        """Update the rows of these ids by the gradients among the metrics, and return the other metrics."""
        others = {name: value for name, value in metrics.items() if name != ROW_GRADIENTS}
        for store, own, gradients in zip(_rows(state).stores, ids, metrics[ROW_GRADIENTS], strict=True):
            store.update(own, np.asarray(gradients)[: len(own)], store.step + 1)
        return others


def _rows(state: TrainState) -> LocalRows:
    rows: LocalRows = state.recipe.tables  # type: ignore[assignment]
    return rows


def table_step(engine: Engine, trainable: TableTrainable) -> Step:
    """Build the step of a model whose variables and tables are both in this process."""
    steps = TableSteps(engine, trainable)

    def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        row_batch, ids = steps.look_up(state, batch)
        after, metrics = steps.dense(state, row_batch)
        return after, steps.update(after, ids, metrics)

    return step


def place_rows(replicas: Replicas, batch: Any, rows: Sequence[Array], places: Sequence[Array]) -> RowBatch:
    """Put a batch and its rows on the devices; the places of rows are split as the batch is."""
    if replicas.read_host_memory:
        return RowBatch(batch, list(rows), list(places))
    count = count_rows(batch)
    is_split = count % len(replicas) == 0
    shardings = [
        replicas.split if is_split and each.ndim and len(each) == count else replicas.whole for each in places
    ]
    on_devices = [jax.device_put(each, sharding) for each, sharding in zip(places, shardings, strict=True)]
    return RowBatch(replicas.place(batch), replicas.replicate(list(rows)), on_devices)
