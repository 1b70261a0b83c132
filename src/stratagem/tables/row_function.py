"""A function that looks rows up, for batches of every shape: which rows a batch needs, and what the function makes of them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from stratagem.tables.lookups import Loss, TracedLoss, spec
from stratagem.tables.stacks import BatchReader, BatchRows, Stack


class RowBatch(NamedTuple):
    """A batch, with the rows that it needs.

    Attributes:
        batch: The user's batch.
        rows: For each stack, the rows.
        places: For each look-up, where its rows are among these.
    """

    batch: Any
    rows: list[Any]
    places: list[Any]


class RowFunction:
    """A function of values, a batch, tables and a key. It is traced once for each shape of batch.

    Args:
        function: The function.
        stacks: The tables.
    """

    def __init__(self, function: Loss, stacks: Sequence[Stack]) -> None:
        self._function = function
        self._tables = [table for stack in stacks for table in stack.tables]
        self._reader = BatchReader(stacks)
        self._traced: dict[Any, TracedLoss] = {}

    def needed_early(self, values: Any, batch: Any) -> BatchRows | None:
        """The rows that a batch on the host needs; `None` if that depends on the key of its step; see `needed`."""
        traced = self._traced_for(values, batch)
        return None if traced.needs_rng else self._rows(traced, batch, lambda: jax.random.key(0))

    def needed(self, values: Any, batch: Any, rng: Callable[[], jax.Array]) -> BatchRows:
        """The rows that a batch on the host needs.

        Args:
            values: What the function computes with, or its shapes.
            batch: The batch.
            rng: Makes the key of the step.

        Raises:
            DataError: An id is not of its table.
            StrategyError: The function looks rows up where that is not known beforehand.
        """
        return self._rows(self._traced_for(values, batch), batch, rng)

    def _rows(self, traced: TracedLoss, batch: Any, rng: Callable[[], jax.Array]) -> BatchRows:
        return self._reader.rows(traced.lookups, traced.ids(batch, rng))

    def __call__(self, values: Any, batch: RowBatch, rng: jax.Array) -> Any:
        """What the function returns; traceable, and differentiable with respect to values and rows."""
        traced = self._traced_for(values, batch.batch)
        return traced.loss(values, batch.batch, rng, self._reader.by_table(batch.rows), batch.places)

    def with_gradients(self, values: Any, batch: RowBatch, rng: jax.Array) -> tuple[Any, list[Any]]:
        """What a function that differentiates by itself returns, and for each stack the gradients of its rows; traceable."""
        traced = self._traced_for(values, batch.batch)

        def look_up(rows: list[Any]) -> list[Any]:
            return traced.found(self._reader.by_table(rows), batch.places)

        found, back = jax.vjp(look_up, batch.rows)
        returned, gradients = traced.computed(values, batch.batch, rng, found)
        return returned, back(gradients)[0]

    def _traced_for(self, values: Any, batch: Any) -> TracedLoss:
        leaves, tree = jax.tree.flatten(batch)
        # As they are, since to ask JAX what it makes of every type takes longer than all else here.
        form = (
            tree,
            *[(leaf.shape, leaf.dtype) if hasattr(leaf, "dtype") else type(leaf) for leaf in leaves],
        )
        known = self._traced.get(form)
        if known is None:
            narrow = (tree, *map(spec, leaves))
            if narrow not in self._traced:
                self._traced[narrow] = TracedLoss(self._function, self._tables, values, batch)
            known = self._traced[form] = self._traced[narrow]
        return known
