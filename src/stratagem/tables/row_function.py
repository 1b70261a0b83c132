"""A function that looks rows up, for batches of any shape: finds the rows that a batch needs, and computes with them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from stratagem.tables.lookups import Loss, TracedLoss, array_spec
from stratagem.tables.stacks import BatchReader, BatchRows, Stack


class RowBatch(NamedTuple):
    """A batch with the rows that it needs.

    Attributes:
        batch: The user's batch.
        rows: For each stack, the rows.
        places: For each look-up, where its rows are among those of its stack.
    """

    batch: Any
    rows: list[Any]
    places: list[Any]


class RowFunction:
    """A function of values, a batch, tables and a key, traced once for each shape of batch."""

    def __init__(self, function: Loss, stacks: Sequence[Stack]) -> None:
        self._function = function
        self._tables = [table for stack in stacks for table in stack.tables]
        self._reader = BatchReader(stacks)
        self._traced: dict[Any, TracedLoss] = {}

    def find_rows_early(self, values: Any, batch: Any) -> BatchRows | None:
        """Return the rows that a batch on the host needs; `None` if they depend on the key of its step."""
        traced = self._trace(values, batch)
        return None if traced.needs_rng else self._find_rows(traced, batch, lambda: jax.random.key(0))

    def find_rows(self, values: Any, batch: Any, rng: Callable[[], jax.Array]) -> BatchRows:
        """Return the rows that a batch on the host needs.

        Args:
            values: The values that the function computes with, or their shapes.
            batch: The batch.
            rng: Makes the key of the step.

        Raises:
            DataError: An id is not of its table.
            StrategyError: The function looks rows up that cannot be known beforehand.
        """
        return self._find_rows(self._trace(values, batch), batch, rng)

    def _find_rows(self, traced: TracedLoss, batch: Any, rng: Callable[[], jax.Array]) -> BatchRows:
        return self._reader.rows(traced.lookups, traced.ids(batch, rng))

    def __call__(self, values: Any, batch: RowBatch, rng: jax.Array) -> Any:
        """Call the function; traceable, and differentiable with respect to values and rows."""
        traced = self._trace(values, batch.batch)
        return traced.loss(values, batch.batch, rng, self._reader.by_table(batch.rows), batch.places)

    def with_gradients(self, values: Any, batch: RowBatch, rng: jax.Array) -> tuple[Any, list[Any]]:
        """Call a function that differentiates by itself; traceable.

        Returns:
            What the function returned, and for each stack the gradients of its rows.
        """
        traced = self._trace(values, batch.batch)

        def look_up(rows: list[Any]) -> list[Any]:
            return traced.look_up(self._reader.by_table(rows), batch.places)

        rows_by_lookup, to_stacks = jax.vjp(look_up, batch.rows)
        returned, gradients = traced.compute(values, batch.batch, rng, rows_by_lookup)
        return returned, to_stacks(gradients)[0]

    def _trace(self, values: Any, batch: Any) -> TracedLoss:
        leaves, tree = jax.tree.flatten(batch)
        # With the types as they are: to ask JAX what it makes of each takes longer than all else here.
        form = (
            tree,
            *[(leaf.shape, leaf.dtype) if hasattr(leaf, "dtype") else type(leaf) for leaf in leaves],
        )
        known = self._traced.get(form)
        if known is None:
            jax_form = (tree, *map(array_spec, leaves))
            if jax_form not in self._traced:
                self._traced[jax_form] = TracedLoss(self._function, self._tables, values, batch)
            known = self._traced[form] = self._traced[jax_form]
        return known
