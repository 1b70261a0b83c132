"""Steps of engines that have their variables in this process, for models with tables as well."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from stratagem.runtime.wire.arrays import Array
from stratagem.strategies.engines import Engine, Step
from stratagem.strategies.local_rows import LocalRows
from stratagem.strategies.replicas import Replicas
from stratagem.strategies.row_trainable import ROW_GRADIENTS, RowBatch, RowTrainable
from stratagem.strategies.rows import count_rows
from stratagem.tables.stacks import padded
from stratagem.waist import Metrics, TrainState


def row_step(engine: Engine, trainable: RowTrainable) -> Step:
    """The step of an engine that has its variables in this process, for a model with tables as well."""
    dense, replicas = engine.build(trainable), engine.replicas

    def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        tables: LocalRows = state.recipe.tables  # type: ignore[assignment]
        needed = trainable.needed(state.flat_params, batch, lambda: state.rng)
        rows = [padded(store.read(ids)) for store, ids in zip(tables.stores, needed.ids, strict=True)]
        after, metrics = dense(state, placed(replicas, batch, rows, needed.places))
        gradients = metrics.pop(ROW_GRADIENTS)
        for store, ids, own in zip(tables.stores, needed.ids, gradients, strict=True):
            store.update(ids, np.asarray(own)[: len(ids)], store.step + 1)
        return after, metrics

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
