"""Steps of engines that have their variables in this process, for models with tables as well."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from stratagem.engines.engine import Engine, Step
from stratagem.engines.local_rows import LocalRows
from stratagem.engines.replicas import Replicas
from stratagem.engines.row_trainable import ROW_GRADIENTS, LooksUpRows
from stratagem.engines.rows import count_rows
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.row_function import RowBatch
from stratagem.tables.stacks import padded
from stratagem.waist import Metrics, TrainState


class RowSteps:
    """The parts of a step of an engine that has its variables in this process, for a model with tables as well.

    Args:
        engine: The engine.
        trainable: The model.

    Attributes:
        dense: Trains the variables on a batch and its rows; the gradients of these are among its metrics.
    """

    def __init__(self, engine: Engine, trainable: LooksUpRows) -> None:
        self.dense = engine.build(trainable)  # type: ignore[arg-type]  # a `Trainable` too
        self._trainable = trainable
        self._replicas = engine.replicas

    def bring(self, state: TrainState, batch: Any) -> tuple[RowBatch, list[Array]]:
        """A batch of the host with the rows that it needs, and their ids."""
        needed = self._trainable.needed(state.flat_params, batch, lambda: state.rng)
        stores = _tables(state).stores
        rows = [padded(store.read(ids)) for store, ids in zip(stores, needed.ids, strict=True)]
        return placed(self._replicas, batch, rows, needed.places), needed.ids

    def update(self, state: TrainState, ids: Sequence[Array], metrics: Metrics) -> Metrics:
        """Update the rows of these ids; the other metrics."""
        others = {name: value for name, value in metrics.items() if name != ROW_GRADIENTS}
        for store, own, gradients in zip(_tables(state).stores, ids, metrics[ROW_GRADIENTS], strict=True):
            store.update(own, np.asarray(gradients)[: len(own)], store.step + 1)
        return others


def _tables(state: TrainState) -> LocalRows:
    tables: LocalRows = state.recipe.tables  # type: ignore[assignment]
    return tables


def row_step(engine: Engine, trainable: LooksUpRows) -> Step:
    """The step of an engine that has its variables in this process, for a model with tables as well."""
    steps = RowSteps(engine, trainable)

    def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        given, ids = steps.bring(state, batch)
        after, metrics = steps.dense(state, given)
        return after, steps.update(after, ids, metrics)

    return step


def placed(replicas: Replicas, batch: Any, rows: Sequence[Array], places: Sequence[Array]) -> RowBatch:
    """A batch and what it needs, where devices compute: places of rows are where the rows of the batch are."""
    if replicas.read_host_memory:
        return RowBatch(batch, list(rows), list(places))
    return RowBatch(replicas.place(batch), replicas.replicate(list(rows)), _placed(replicas, batch, places))


def _placed(replicas: Replicas, batch: Any, places: Sequence[Array]) -> list[Any]:
    rows = count_rows(batch)
    is_split = rows % len(replicas) == 0
    return [
        jax.device_put(
            each, replicas.split if is_split and each.ndim and len(each) == rows else replicas.whole
        )
        for each in places
    ]
