"""The rows of tables on parameter servers that a worker's next steps need, fetched with the push before where possible."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from stratagem.engines.rows import count_rows
from stratagem.engines.table_trainables import TableTrainable
from stratagem.errors import DataError, StrategyError
from stratagem.parameters.planning import Pieces
from stratagem.parameters.served_tables import ServerRows
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.row_partition import RowPartition
from stratagem.tables.stacks import BatchRows, padded_size
from stratagem.waist import Arrays


@dataclass(eq=False)
class RowsOfBatch:
    """The rows that one batch needs.

    Attributes:
        batch: The batch.
        needed: Which rows.
        partitions: For each stack, how its ids are divided among the servers.
        values: For each stack the rows, once they have come.
    """

    batch: Any
    needed: BatchRows
    partitions: list[RowPartition]
    values: list[Array] | None = None

    def ids(self) -> Pieces:
        """Return, for each server, the ids of each stack."""
        return [list(column) for column in zip(*(each.ids for each in self.partitions), strict=True)]

    def set_values(self, rows: Pieces) -> None:
        """Take the rows that the servers have sent."""
        self.values = [
            partition.join([own[number] for own in rows], padded_size(len(ids)))
            for number, (partition, ids) in enumerate(zip(self.partitions, self.needed.ids, strict=True))
        ]

    def gradients(self, row_grads: Sequence[Any]) -> Pieces:
        """Return, for each server, the ids and the gradients of each stack in turn."""
        columns: list[list[Array]] = []
        for partition, ids, own in zip(self.partitions, self.needed.ids, row_grads, strict=True):
            columns += [partition.ids, partition.split(np.asarray(own)[: len(ids)])]
        return [list(column) for column in zip(*columns, strict=True)]


class RowPrefetcher:
    """Knows, and fetches, the rows that the steps of one worker need."""

    def __init__(self, source: ServerRows, trainable: TableTrainable, distance: int) -> None:
        self._source = source
        self._trainable = trainable
        # The rows of the present batch, and of as many after it as steps look ahead.
        self._ahead: deque[RowsOfBatch] = deque(maxlen=distance + 1)

    def has_rows(self, batch: Any) -> bool:
        """Return whether the rows that a batch needs have come with a push."""
        return any(each.batch is batch and each.values is not None for each in self._ahead)

    def needed(self, params: Arrays, batch: Any, rng: Callable[[], jax.Array]) -> RowsOfBatch:
        """Return the rows that a batch needs, with values if they have come with a push."""
        rows = next((each for each in self._ahead if each.batch is batch), None)
        if rows is None:
            return self._rows_of(self._trainable.needed(params, batch, rng), batch)
        self._ahead.remove(rows)
        return rows

    def following(self, params: Arrays, batch: Any) -> RowsOfBatch | None:
        """Return the rows that a later batch needs, to be asked for with a push; `None` if they are not known yet."""
        try:
            has_rows = batch is not None and count_rows(batch)
            needed = self._trainable.needed_early(params, batch) if has_rows else None
        except (DataError, StrategyError):
            return None  # the step of that batch says what is wrong with it; this one is not
        if needed is None:
            return None
        self._ahead.append(self._rows_of(needed, batch))
        return self._ahead[-1]

    def _rows_of(self, needed: BatchRows, batch: Any) -> RowsOfBatch:
        return RowsOfBatch(batch, needed, self._source.divided(needed.ids))

    def pull(self, rows: RowsOfBatch) -> None:
        """Fetch rows from the servers."""
        client = self._source.client
        if client is not None:
            rows.set_values(client.pull_rows(rows.ids(), trains=True))

    def forget(self) -> None:
        """Discard rows: values have been set on the servers since they came."""
        self._ahead.clear()
