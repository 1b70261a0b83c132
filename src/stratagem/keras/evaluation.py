"""A model that is evaluated or predicts: its `test_step` and `predict_step` on all devices of all workers."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from stratagem.engines.feeds import Deal
from stratagem.engines.local_tables import place_rows
from stratagem.engines.replicas import Replicas
from stratagem.engines.rows import count_rows
from stratagem.keras.gathering import chief_values
from stratagem.keras.host_layers import host_layers_of
from stratagem.keras.model_tables import ModelTables
from stratagem.keras.trainable import KerasTrainable
from stratagem.keras.value_home import Values, on_one_device
from stratagem.strategies.base import Strategy
from stratagem.tables.row_function import RowFunction
from stratagem.tables.row_source import RowSource
from stratagem.tables.stacks import pad_rows
from stratagem.waist import Arrays


class Evaluation:
    """A model that is not being trained.

    Workers that share out rows begin with the same values: the chief's, unless training has made them the same.

    Args:
        strategy: The strategy.
        model: The model, built.
        is_agreed: Whether all workers have the same values already.
        tables: Its tables, if it has some.

    Attributes:
        rows: How many rows of the last batch this worker tested.
    """

    def __init__(
        self, strategy: Strategy, model: Any, is_agreed: bool, tables: ModelTables | None = None
    ) -> None:
        self._strategy = strategy
        self._replicas = strategy.engine.replicas
        self._shares = strategy.feed.shares_evaluation
        self._is_agreed = is_agreed or not self._shares
        self._num_layers = len(model.non_trainable_variables)
        trainable = KerasTrainable(model, 0, reads_optimizer=False)
        self._run_host_layers: Callable[[Any], Any] = host_layers_of(model) or _unchanged
        self._place: Callable[[Any], Any] = self._replicas.place
        self._test: Callable[..., Any]
        self._predict: Callable[..., Any]
        if tables is None:
            self._test = jax.jit(trainable.test, out_shardings=self._replicas.whole)
            self._predict = jax.jit(trainable.predict_with_state, out_shardings=self._replicas.whole)
        else:
            self._place = _unchanged  # ids are looked up on the host, where they have all their bits
            self._test = _RowReader(trainable.test, tables, self._replicas)
            self._predict = _RowReader(trainable.predict_with_state, tables, self._replicas)
        self._last: tuple[Values, Values] | None = None
        self._original: Values = ()
        self._logs: Any = {}
        self.rows = 0

    def test(self, values: Values, share: Any) -> tuple[Any, Values]:
        """Return the logs of `test_step` on this worker's share of a batch, and the values after it."""
        params, others, metrics = self._enter(values)
        self.rows = count_rows(share)
        if not self.rows:
            return self._logs, self._leave((params, others, metrics))
        batch = self._place(self._run_host_layers(share))
        self._logs, state = self._test(params, [*others, *metrics], batch)
        return self._logs, self._leave((params, state[: self._num_layers], state[self._num_layers :]))

    def predict(self, values: Values, batch: Any, deal: Deal) -> tuple[Any, Values]:
        """Return the outputs of `predict_step` for a whole batch, which workers share out, and the values after it."""
        params, others = self._enter(values)
        workers = self._strategy.workers
        is_shared = self._shares and count_rows(batch) >= workers.count
        share = deal(batch) if is_shared else batch
        outputs, others = self._predict(params, others, self._place(self._run_host_layers(share)))
        outputs = jax.tree.map(np.asarray, outputs)
        if is_shared:
            outputs = jax.tree.map(lambda own: np.concatenate(list(workers.gather(own))), outputs)
        return outputs, self._leave((params, others))

    def settle(self, values: dict[str, Arrays]) -> dict[str, Arrays]:
        """Return the values to write back into the variables: the very arrays that were there, where nothing changed."""
        after = {name: [on_one_device(value) for value in each] for name, each in values.items()}
        if self._original:
            after["trainable_variables"] = self._original[0]
            after["non_trainable_variables"] = [
                old if np.array_equal(old, new) else new
                for old, new in zip(self._original[1], after["non_trainable_variables"], strict=True)
            ]
        return after

    def _enter(self, values: Values) -> Values:
        """Return Keras's values on all devices."""
        if self._last is None or values is not self._last[0]:
            if not self._is_agreed:
                values = chief_values(self._strategy.workers, values)
                self._is_agreed = True
            self._original = values
            self._last = values, self._replicas.replicate(values)
        return self._last[1]

    def _leave(self, values: Values) -> Values:
        self._last = values, values
        return values


class _RowReader:
    """A function of parameters, state and batch that looks rows up: they are read for it, and none is made."""

    def __init__(self, function: Callable[..., Any], tables: ModelTables, replicas: Replicas) -> None:
        self._function = function
        self._tables = tables
        self._replicas = replicas
        self._compiled: tuple[RowSource, RowFunction, Callable[..., Any]] | None = None

    def __call__(self, params: Arrays, state: Arrays, batch: Any) -> Any:
        """Call the function with a batch of the host."""
        source = self._tables.for_reading()
        if self._compiled is None or self._compiled[0] is not source:
            rows = RowFunction(lambda values, batch, *_: self._function(*values, batch), source.stacks)
            self._compiled = source, rows, jax.jit(rows, out_shardings=self._replicas.whole)
        _, rows, compiled = self._compiled
        needed = rows.find_rows((params, state), batch, _any_key)
        values = [pad_rows(source.read(number, ids)) for number, ids in enumerate(needed.ids)]
        return compiled((params, state), place_rows(self._replicas, batch, values, needed.places), _any_key())


def _any_key() -> jax.Array:
    """Return a key that nothing uses: Keras draws random numbers from its own state."""
    return jax.random.key(0)


def _unchanged(batch: Any) -> Any:
    return batch
