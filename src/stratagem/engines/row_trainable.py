"""Trainables over tables: loss functions `loss_fn(params, batch, rows)`, and those of libraries that look rows up."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.tree_util import PyTreeDef

from stratagem.tables.row_function import RowBatch, RowFunction
from stratagem.tables.stacks import BatchRows, Stack
from stratagem.waist import Arrays, Kind, Metrics, Trainable
from stratagem.waist.arguments import check_takes
from stratagem.waist.functions import LossFunction
from stratagem.waist.returned import checked_loss

ROW_GRADIENTS = "gradients of rows"
"""Among the metrics of such a trainable: for each stack the gradients of the rows that it was given."""
_FORM = (
    "loss_fn(params, batch, rows), or loss_fn(params, batch, rows, rng) to be given a random key of each step"
)


class LooksUpRows(ABC):
    """What a `Trainable` over tables is too: before a step it tells which rows a batch needs, to be made a `RowBatch`."""

    @abstractmethod
    def needed_early(self, params: Arrays, batch: Any) -> BatchRows | None:
        """The rows that a batch on the host needs; `None` if that depends on the key of its step.

        Args:
            params: The parameters, or their shapes.
            batch: The batch.

        Raises:
            DataError: An id is not of its table.
            StrategyError: Rows are looked up where that is not known beforehand.
        """

    @abstractmethod
    def needed(self, params: Arrays, batch: Any, rng: Callable[[], jax.Array]) -> BatchRows:
        """The same, whatever it depends on.

        Args:
            params: The parameters, or their shapes.
            batch: The batch.
            rng: Makes the key of the step.
        """

    @abstractmethod
    def loss_and_grad(
        self, params: Arrays, state: Arrays, batch: RowBatch, rng: jax.Array
    ) -> tuple[tuple[jax.Array, Arrays, Metrics], Arrays]:
        """See `Trainable`; the gradients of rows are among the metrics."""


class RowTrainable(LossFunction, LooksUpRows):
    """A loss function of (parameters, batch, rows).

    Args:
        tree: The structure of the parameters.
        loss_fn: The loss function.
        stacks: The tables.
    """

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
        """See `LooksUpRows`."""
        return self._loss.needed_early(params, batch)

    def needed(self, params: Arrays, batch: Any, rng: Callable[[], jax.Array]) -> BatchRows:
        """See `LooksUpRows`."""
        return self._loss.needed(params, batch, rng)

    def loss_and_grad(
        self, params: Arrays, state: Arrays, batch: RowBatch, rng: jax.Array
    ) -> tuple[tuple[jax.Array, Arrays, Metrics], Arrays]:
        """See `LooksUpRows`."""

        def loss_of(flat: Arrays, rows: list[Any]) -> tuple[jax.Array, Metrics]:
            return self._call(flat, batch._replace(rows=rows), rng)

        (loss, metrics), (grads, of_rows) = jax.value_and_grad(loss_of, argnums=(0, 1), has_aux=True)(
            params, batch.rows
        )
        return (loss, state, {**metrics, ROW_GRADIENTS: of_rows}), grads

    def _call(self, flat: Arrays, batch: RowBatch, rng: jax.Array) -> tuple[jax.Array, Metrics]:
        returned: tuple[jax.Array, Metrics] = self._loss(flat, batch, rng)
        return returned


class RowsOfTrainable(LooksUpRows):
    """A trainable whose `loss_and_grad` looks rows up by itself, and differentiates with respect to their probes.

    Args:
        trainable: The trainable.
        stacks: The tables.
        opt_state: What it is given of the optimizer's state, if it reads that.
    """

    def __init__(self, trainable: Trainable, stacks: Sequence[Stack], opt_state: Arrays) -> None:
        self._trainable = trainable
        self.reads_optimizer = trainable.reads_optimizer
        params, state = trainable.init()
        self._form = jax.eval_shape(lambda: (params, [*state, *(opt_state if self.reads_optimizer else [])]))

        def loss_and_grad(values: Any, batch: Any, _: Any, rng: jax.Array) -> Any:
            params, state = values
            return trainable.loss_and_grad(params, state, batch, rng)

        self._function = RowFunction(loss_and_grad, stacks)

    @property
    def names(self) -> Sequence[str]:
        """See `Trainable`."""
        return self._trainable.names

    @property
    def kinds(self) -> Sequence[Kind] | None:
        """See `Trainable`."""
        return self._trainable.kinds

    def init(self) -> tuple[Arrays, Arrays]:
        """See `Trainable`."""
        return self._trainable.init()

    def needed_early(self, params: Arrays, batch: Any) -> BatchRows | None:
        """See `LooksUpRows`."""
        return self._function.needed_early(self._form, batch)

    def needed(self, params: Arrays, batch: Any, rng: Callable[[], jax.Array]) -> BatchRows:
        """See `LooksUpRows`."""
        return self._function.needed(self._form, batch, rng)

    def loss_and_grad(
        self, params: Arrays, state: Arrays, batch: RowBatch, rng: jax.Array
    ) -> tuple[tuple[jax.Array, Arrays, Metrics], Arrays]:
        """See `LooksUpRows`."""
        ((loss, after, metrics), grads), of_rows = self._function.with_gradients((params, state), batch, rng)
        return (loss, after, {**metrics, ROW_GRADIENTS: of_rows}), grads

    def report(self, state: Arrays) -> Metrics:
        """See `Trainable`."""
        return self._trainable.report(state)

    def evaluate(self, params: Arrays, state: Arrays, batch: Any) -> Metrics:
        """See `Trainable`."""
        return self._trainable.evaluate(params, state, batch)

    def predict(self, params: Arrays, state: Arrays, batch: Any) -> Any:
        """See `Trainable`."""
        return self._trainable.predict(params, state, batch)

    def commit(self, params: Arrays, state: Arrays) -> None:
        """See `Trainable`."""
        self._trainable.commit(params, state)
