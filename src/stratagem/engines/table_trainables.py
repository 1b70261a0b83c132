"""Trainables over tables: loss functions `loss_fn(params, batch, rows)`, and those of libraries that look rows up."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.tree_util import PyTreeDef

from stratagem.tables.row_function import RowBatch, RowFunction
from stratagem.tables.stacks import BatchRows, Stack
from stratagem.waist import Arrays, Metrics, Trainable
from stratagem.waist.loss_functions import LossFunction
from stratagem.waist.user_functions import check_takes, checked_loss

ROW_GRADIENTS = "gradients of rows"
"""The metric of such trainables that holds, for each stack, the gradients of the rows of the batch."""
_FORM = (
    "loss_fn(params, batch, rows), or loss_fn(params, batch, rows, rng) to be given a random key of each step"
)


class TableTrainable(Trainable):
    """A trainable that knows beforehand which rows a batch needs.

    Its `loss_and_grad` takes a `RowBatch`, which has these rows, and returns their gradients as the metric
    `ROW_GRADIENTS`.
    """

    @abstractmethod
    def needed_early(self, params: Arrays, batch: Any) -> BatchRows | None:
        """Return the rows that a batch on the host needs; `None` if they depend on the random key of its step.

        Args:
            params: The parameters, or their shapes.
            batch: The batch.

        Raises:
            DataError: An id is not of its table.
            StrategyError: The loss function looks rows up in a way that cannot be known beforehand.
        """

    @abstractmethod
    def needed(self, params: Arrays, batch: Any, rng: Callable[[], jax.Array]) -> BatchRows:
        """Return the rows that a batch on the host needs.

        Args:
            params: The parameters, or their shapes.
            batch: The batch.
            rng: Makes the random key of the step.
        """


class TableLossFunction(LossFunction, TableTrainable):
    """A loss function of (parameters, batch, rows)."""

    def __init__(self, tree: PyTreeDef, loss_fn: Callable[..., Any], stacks: Sequence[Stack]) -> None:
        super().__init__(tree)
        wants_rng = check_takes("loss_fn", loss_fn, _FORM, 3, by_name="rng")

        def loss(flat: Arrays, batch: Any, rows: Any, rng: jax.Array) -> Any:
            params = jax.tree.unflatten(tree, flat)
            return checked_loss(
                loss_fn(params, batch, rows, rng=rng) if wants_rng else loss_fn(params, batch, rows)
            )

        self._loss = RowFunction(loss, stacks)

    def needed_early(self, params: Arrays, batch: Any) -> BatchRows | None:
        return self._loss.find_rows_early(params, batch)

    def needed(self, params: Arrays, batch: Any, rng: Callable[[], jax.Array]) -> BatchRows:
        return self._loss.find_rows(params, batch, rng)

    def loss_and_grad(
        self, params: Arrays, state: Arrays, batch: RowBatch, rng: jax.Array
    ) -> tuple[tuple[jax.Array, Arrays, Metrics], Arrays]:
        def loss_of(flat: Arrays, rows: list[Any]) -> tuple[jax.Array, Metrics]:
            return self._call(flat, batch._replace(rows=rows), rng)

        (loss, metrics), (grads, row_grads) = jax.value_and_grad(loss_of, argnums=(0, 1), has_aux=True)(
            params, batch.rows
        )
        return (loss, state, {**metrics, ROW_GRADIENTS: row_grads}), grads

    def _call(self, flat: Arrays, batch: RowBatch, rng: jax.Array) -> tuple[jax.Array, Metrics]:
        result: tuple[jax.Array, Metrics] = self._loss(flat, batch, rng)
        return result


class TrainableWithTables(TableTrainable):
    """A trainable whose own `loss_and_grad` looks rows up, and differentiates with respect to them.

    Args:
        trainable: The trainable.
        stacks: The tables.
        opt_state: What it is given of the optimizer's state, if it reads that.
    """

    def __init__(self, trainable: Trainable, stacks: Sequence[Stack], opt_state: Arrays) -> None:
        self._trainable = trainable
        self.reads_optimizer = trainable.reads_optimizer
        self.names, self.kinds = trainable.names, trainable.kinds
        params, state = trainable.init()
        self._form = jax.eval_shape(lambda: (params, [*state, *(opt_state if self.reads_optimizer else [])]))

        def loss_and_grad(values: Any, batch: Any, _: Any, rng: jax.Array) -> Any:
            params, state = values
            return trainable.loss_and_grad(params, state, batch, rng)

        self._function = RowFunction(loss_and_grad, stacks)

    def init(self) -> tuple[Arrays, Arrays]:
        return self._trainable.init()

    def needed_early(self, params: Arrays, batch: Any) -> BatchRows | None:
        return self._function.find_rows_early(self._form, batch)

    def needed(self, params: Arrays, batch: Any, rng: Callable[[], jax.Array]) -> BatchRows:
        return self._function.find_rows(self._form, batch, rng)

    def loss_and_grad(
        self, params: Arrays, state: Arrays, batch: RowBatch, rng: jax.Array
    ) -> tuple[tuple[jax.Array, Arrays, Metrics], Arrays]:
        ((loss, after, metrics), grads), row_grads = self._function.with_gradients(
            (params, state), batch, rng
        )
        return (loss, after, {**metrics, ROW_GRADIENTS: row_grads}), grads

    def report(self, state: Arrays) -> Metrics:
        return self._trainable.report(state)

    def evaluate(self, params: Arrays, state: Arrays, batch: Any) -> Metrics:
        return self._trainable.evaluate(params, state, batch)

    def predict(self, params: Arrays, state: Arrays, batch: Any) -> Any:
        return self._trainable.predict(params, state, batch)

    def commit(self, params: Arrays, state: Arrays) -> None:
        self._trainable.commit(params, state)
