"""What a model tells of batches without being trained: its `test_step` and `predict_step` on all devices, on all workers."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from stratagem.engines.feeds import Deal
from stratagem.engines.rows import count_rows
from stratagem.keras.host_layers import host_layers_of
from stratagem.keras.model_tables import ModelTables, ReadsRows
from stratagem.keras.residence import Values, at_home
from stratagem.keras.sums import taken_from_chief
from stratagem.keras.trainable import KerasTrainable
from stratagem.strategies.base import Strategy
from stratagem.waist import Arrays


class Evaluation:
    """A model that is only looked at.

    Workers that share rows out begin with the same values: the chief's, unless training has made them the same.

    Args:
        strategy: The strategy.
        model: The model, built.
        are_agreed: Whether all workers have the same values already.
        tables: Its tables, if it has some.

    Attributes:
        rows: How many of the last batch's were this worker's to test.
    """

    def __init__(
        self, strategy: Strategy, model: Any, are_agreed: bool, tables: ModelTables | None = None
    ) -> None:
        self._strategy = strategy
        self._replicas = strategy.engine.replicas
        self._shares = strategy.feed.shares_evaluation
        self._are_agreed = are_agreed or not self._shares
        self._layers = len(model.non_trainable_variables)
        trainable = KerasTrainable(model, 0, reads_optimizer=False)
        self._computed: Callable[[Any], Any] = host_layers_of(model) or _as_it_is
        self._place: Callable[[Any], Any] = self._replicas.place
        self._test: Callable[..., Any]
        self._guess: Callable[..., Any]
        if tables is None:
            self._test = jax.jit(trainable.test, out_shardings=self._replicas.whole)
            self._guess = jax.jit(trainable.guess, out_shardings=self._replicas.whole)
        else:
            self._place = _as_it_is  # ids are looked up where they have all their bits
            self._test = ReadsRows(trainable.test, tables, self._replicas)
            self._guess = ReadsRows(trainable.guess, tables, self._replicas)
        self._known: tuple[Values, Values] | None = None
        self._original: Values = ()
        self._told: Any = {}
        self.rows = 0

    def test(self, values: Values, part: Any) -> tuple[Any, Values]:
        """What `test_step` tells of this worker's part of a batch."""
        params, others, metrics = self._entered(values)
        self.rows = count_rows(part)
        if not self.rows:
            return self._told, self._left((params, others, metrics))
        self._told, state = self._test(params, [*others, *metrics], self._place(self._computed(part)))
        return self._told, self._left((params, state[: self._layers], state[self._layers :]))

    def guess(self, values: Values, batch: Any, deal: Deal) -> tuple[Any, Values]:
        """What `predict_step` makes of a batch that is dealt out; every worker has all of it."""
        params, others = self._entered(values)
        workers = self._strategy.workers
        is_shared = self._shares and count_rows(batch) >= workers.count
        part = deal(batch) if is_shared else batch
        outputs, others = self._guess(params, others, self._place(self._computed(part)))
        outputs = jax.tree.map(np.asarray, outputs)
        if is_shared:
            outputs = jax.tree.map(lambda mine: np.concatenate(list(workers.gather(mine))), outputs)
        return outputs, self._left((params, others))

    def settled(self, held: dict[str, Arrays]) -> dict[str, Arrays]:
        """What is to go back into the variables: the very arrays that were there, but for what has changed."""
        kept = {name: [at_home(value) for value in values] for name, values in held.items()}
        if self._original:
            kept["trainable_variables"] = self._original[0]
            kept["non_trainable_variables"] = [
                old if np.array_equal(old, new) else new
                for old, new in zip(self._original[1], kept["non_trainable_variables"], strict=True)
            ]
        return kept

    def _entered(self, values: Values) -> Values:
        if self._known is None or values is not self._known[0]:
            if not self._are_agreed:
                values = taken_from_chief(self._strategy.workers, values)
                self._are_agreed = True
            self._original = values
            self._known = values, self._replicas.replicate(values)
        return self._known[1]

    def _left(self, values: Values) -> Values:
        self._known = values, values
        return values


def _as_it_is(batch: Any) -> Any:
    return batch
