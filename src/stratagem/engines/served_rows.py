"""The rows of tables on parameter servers that one worker's steps need: brought, with the push before if that can be."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from stratagem.engines.row_trainable import LooksUpRows
from stratagem.engines.rows import count_rows
from stratagem.errors import DataError, StrategyError
from stratagem.parameters.planning import Pieces
from stratagem.parameters.server_rows import ServerRows
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.owners import Division
from stratagem.tables.stacks import BatchRows, padded_size
from stratagem.waist import Arrays

_AHEAD = 3
"""Of so many batches at most it is known what they need: the present one, and those of the two steps after it."""


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
        self._following: deque[RowsOfBatch] = deque(maxlen=_AHEAD)

    def are_here(self, batch: Any) -> bool:
        """Whether the rows that a batch needs came with a push."""
        return any(each.batch is batch and each.values is not None for each in self._following)

    def needed(self, params: Arrays, batch: Any, rng: Callable[[], jax.Array]) -> RowsOfBatch:
        """The rows that a batch needs; they are here if they came with a push."""
        known = next((each for each in self._following if each.batch is batch), None)
        if known is None:
            return self._of(self._trainable.needed(params, batch, rng), batch)
        self._following.remove(known)
        return known

    def following(self, params: Arrays, batch: Any) -> RowsOfBatch | None:
        """The rows that a batch after the present one needs, if that is known by now; to be asked for with a push."""
        try:
            is_known = batch is not None and count_rows(batch)
            needed = self._trainable.needed_early(params, batch) if is_known else None
        except (DataError, StrategyError):
            return None  # the step of that batch says what is wrong with it; this one is not
        if needed is None:
            return None
        self._following.append(self._of(needed, batch))
        return self._following[-1]

    def _of(self, needed: BatchRows, batch: Any) -> RowsOfBatch:
        return RowsOfBatch(batch, needed, self._source.divided(needed.ids))

    def bring(self, rows: RowsOfBatch) -> None:
        """Ask the servers for them."""
        client = self._source.client
        if client is not None:
            rows.take(client.pull_rows(rows.wanted(), trains=True))

    def forget(self) -> None:
        """Values have been set on the servers: what came before that is not to be trained on."""
        self._following.clear()
