"""The rows of tables on parameter servers that one worker's steps need: brought, with the push before if that can be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from stratagem.errors import DataError, StrategyError
from stratagem.parameters.planning import Pieces
from stratagem.parameters.server_rows import ServerRows
from stratagem.runtime.wire.arrays import Array
from stratagem.strategies.row_trainable import LooksUpRows
from stratagem.strategies.rows import count_rows
from stratagem.tables.owners import Division
from stratagem.tables.stacks import BatchRows, padded_size
from stratagem.waist import Arrays


@dataclass(eq=False)
class RowsOfBatch:
    """The rows that one batch needs.

    Attributes:
        batch: The batch.
        needed: Which rows.
        divisions: For each stack, how its ids are divided among the servers.
        values: For each stack the rows, once they are here.
    """

    batch: Any
    needed: BatchRows
    divisions: list[Division]
    values: list[Array] | None = None

    def wanted(self) -> Pieces:
        """For each server, for each stack the ids."""
        return [list(column) for column in zip(*(each.parts for each in self.divisions), strict=True)]

    def take(self, rows: Pieces) -> None:
        """The servers have sent them."""
        self.values = [
            division.joined([own[number] for own in rows], padded_size(len(ids)))
            for number, (division, ids) in enumerate(zip(self.divisions, self.needed.ids, strict=True))
        ]

    def gradients(self, of_rows: Sequence[Any]) -> Pieces:
        """For each server, ids and gradients of each stack in turn."""
        columns: list[list[Array]] = []
        for division, ids, own in zip(self.divisions, self.needed.ids, of_rows, strict=True):
            columns += [division.parts, division.divided(np.asarray(own)[: len(ids)])]
        return [list(column) for column in zip(*columns, strict=True)]


class ServedRows:
    """Brings the rows that the steps of one worker need.

    Args:
        source: The tables.
        trainable: Knows which rows a batch needs.
    """

    def __init__(self, source: ServerRows, trainable: LooksUpRows) -> None:
        self._source = source
        self._trainable = trainable
        self._following: RowsOfBatch | None = None

    def needed(self, params: Arrays, batch: Any, rng: Callable[[], jax.Array]) -> RowsOfBatch:
        """The rows that a batch needs; they are here if they came with the last push."""
        following, self._following = self._following, None
        if following is not None and following.batch is batch:
            return following
        return self._of(self._trainable.needed(params, batch, rng), batch)

    def following(self, params: Arrays, batch: Any) -> RowsOfBatch | None:
        """The rows that the next batch needs, if that is known by now."""
        try:
            is_known = batch is not None and count_rows(batch)
            needed = self._trainable.needed_early(params, batch) if is_known else None
        except (DataError, StrategyError):
            return None  # the step of that batch says what is wrong with it; this one is not
        return None if needed is None else self._of(needed, batch)

    def _of(self, needed: BatchRows, batch: Any) -> RowsOfBatch:
        return RowsOfBatch(batch, needed, self._source.divided(needed.ids))

    def bring(self, rows: RowsOfBatch) -> None:
        """Ask the servers for them."""
        client = self._source.client
        if client is not None:
            rows.take(client.pull_rows(rows.wanted(), trains=True))

    def came(self, rows: RowsOfBatch | None, values: Pieces | None) -> None:
        """With a push came the rows of the batch after it, or did not."""
        if rows is not None and values is not None:
            rows.take(values)
        self._following = rows
