"""Loss functions over tables: `loss_fn(params, batch, rows)`, which may also ask for `rng`, as a `Trainable`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.tree_util import PyTreeDef

from stratagem.tables.lookups import TracedLoss, spec
from stratagem.tables.stacks import BatchReader, BatchRows, Stack
from stratagem.waist import Arrays, Metrics
from stratagem.waist.arguments import check_takes
from stratagem.waist.functions import LossFunction
from stratagem.waist.returned import checked_loss

ROW_GRADIENTS = "gradients of rows"
"""Among the metrics of such a trainable: for each stack the gradients of the rows that it was given."""
_FORM = (
    "loss_fn(params, batch, rows), or loss_fn(params, batch, rows, rng) to be given a random key of each step"
)


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


class RowTrainable(LossFunction):
    """A loss function of (parameters, batch, rows). Batches that it is trained on are `RowBatch`es.

    Args:
        tree: The structure of the parameters.
        loss_fn: The loss function.
        stacks: The tables.
    """

    def __init__(self, tree: PyTreeDef, loss_fn: Callable[..., Any], stacks: Sequence[Stack]) -> None:
        super().__init__(tree)
        wants_rng = check_takes("loss_fn", loss_fn, _FORM, 3, by_name="rng")

        def loss(params: Any, batch: Any, rows: Any, rng: jax.Array) -> Any:
            return checked_loss(
                loss_fn(params, batch, rows, rng=rng) if wants_rng else loss_fn(params, batch, rows)
            )

        self._loss = loss
        self._tables = [table for stack in stacks for table in stack.tables]
        self._reader = BatchReader(stacks)
        self._traced: dict[Any, TracedLoss] = {}

    def needed_early(self, params: Arrays, batch: Any) -> BatchRows | None:
        """The rows that a batch on the host needs; `None` if that depends on the key of its step.

        Args:
            params: The parameters, or their shapes.
            batch: The batch.

        Raises:
            DataError: An id is not of its table.
            StrategyError: The loss function looks rows up where that is not known beforehand.
        """
        traced = self._traced_for(params, batch)
        if traced.needs_rng:
            return None
        return self._reader.rows(traced.lookups, traced.ids(batch, lambda: jax.random.key(0)))

    def needed(self, params: Arrays, batch: Any, rng: Callable[[], jax.Array]) -> BatchRows:
        """The rows that a batch on the host needs.

        Args:
            params: The parameters, or their shapes.
            batch: The batch.
            rng: Makes the key of the step.

        Raises:
            DataError: An id is not of its table.
            StrategyError: The loss function looks rows up where that is not known beforehand.
        """
        traced = self._traced_for(params, batch)
        return self._reader.rows(traced.lookups, traced.ids(batch, rng))

    def _traced_for(self, params: Arrays, batch: Any) -> TracedLoss:
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
                whole = jax.tree.unflatten(self._tree, params)
                self._traced[narrow] = TracedLoss(self._loss, self._tables, whole, batch)
            known = self._traced[form] = self._traced[narrow]
        return known

    def loss_and_grad(
        self, params: Arrays, state: Arrays, batch: RowBatch, rng: jax.Array
    ) -> tuple[tuple[jax.Array, Arrays, Metrics], Arrays]:
        """See `Trainable`; the gradients of rows are among the metrics."""

        def loss_of(flat: Arrays, rows: list[Any]) -> tuple[jax.Array, Metrics]:
            return self._call(flat, batch._replace(rows=rows), rng)

        (loss, metrics), (grads, of_rows) = jax.value_and_grad(loss_of, argnums=(0, 1), has_aux=True)(
            params, batch.rows
        )
        return (loss, state, {**metrics, ROW_GRADIENTS: of_rows}), grads

    def _call(self, flat: Arrays, batch: RowBatch, rng: jax.Array) -> tuple[jax.Array, Metrics]:
        traced = self._traced_for(flat, batch.batch)
        params, rows = jax.tree.unflatten(self._tree, flat), self._reader.by_table(batch.rows)
        returned: tuple[jax.Array, Metrics] = traced.loss(params, batch.batch, rng, rows, batch.places)
        return returned
