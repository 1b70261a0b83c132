"""Where a Keras model's values are while it is trained: with this process, as its own variables were."""

from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.devices.global_arrays import is_in_reach, local_copy
from stratagem.engines.local_tables import TableSteps
from stratagem.engines.table_trainables import TrainableWithTables
from stratagem.keras.model_tables import ModelTables
from stratagem.keras.random_state import draw_as_chief
from stratagem.keras.sums import from_chief, taken_from_chief
from stratagem.keras.trainable import KerasTrainable
from stratagem.keras.updater import KerasUpdater
from stratagem.strategies.base import Strategy
from stratagem.waist import Arrays, Metrics, TrainState, state_of

Values: TypeAlias = tuple[Arrays, ...]
"""What Keras passes to its functions and takes from them: lists of values, in an order of its own."""
ORDER = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
"""That of a train function."""


class Residence(Protocol):
    """The values of a model in training."""

    @property
    def log_names(self) -> list[str]:
        """What the model's `train_step` tells."""
        ...

    @property
    def served(self) -> Any:
        """The model on the servers, while they train it; `None` if they do not."""
        ...

    def begin(self) -> None:
        """Before training: all workers begin with the chief's values, and draw the same random numbers."""
        ...

    def begin_epoch(self) -> None:
        """Before an epoch, when callbacks have changed what they wanted to change."""
        ...

    def advance(self, values: Values, batch: Any) -> tuple[Metrics, Values]:
        """One step: from the values that Keras passes in to those that it is given."""
        ...

    @property
    def newest(self) -> Values | None:
        """What Keras was given last, or would have been."""
        ...

    def settled(self, held: dict[str, Arrays], is_failing: bool) -> dict[str, Arrays]:
        """What is to go back into the variables, of what Keras has held meanwhile."""
        ...

    def took_back(self) -> None:
        """The variables have their values again."""
        ...

    def agree(self, is_validation: bool) -> None:
        """Before an evaluation: workers that are not in step take values into the variables that all have.

        Args:
            is_validation: Whether it is the validation of an epoch, rather than an evaluation of its own.
        """
        ...

    def end(self) -> None:
        """After training."""
        ...

    def end_epoch(self) -> None:
        """After an epoch: who stops, stops with all."""
        ...


class ResidenceHere:
    """Values on the devices of this process; on those of every worker alike, if there are several.

    Args:
        strategy: The strategy.
        model: The model, built and compiled.
        tables: Its tables, if it has some.
    """

    def __init__(self, strategy: Strategy, model: Any, tables: ModelTables | None = None) -> None:
        self._strategy = strategy
        self._model = model
        trainable = KerasTrainable(model, strategy.workers.index, reads_optimizer=True)
        self._trainable = trainable
        updater = KerasUpdater(model.optimizer)
        self._recipe = state_of(trainable, updater).recipe
        self._layers = len(model.non_trainable_variables)
        self._known: tuple[Values, TrainState] | None = None
        self._has_begun = False
        self._tables = tables
        if tables is None:
            self._step = strategy.engine.build(trainable)
        else:
            rows = tables.for_training()
            self._recipe = replace(self._recipe, tables=rows)
            with_rows = TrainableWithTables(trainable, rows.stacks, updater.init([]))
            self._rows = TableSteps(strategy.engine, with_rows)
            self._step = self._rows.dense

    @property
    def log_names(self) -> list[str]:
        """See `Residence`."""
        return self._trainable.log_names

    served = None
    """See `Residence`."""

    def begin(self) -> None:
        """See `Residence`."""
        workers, model = self._strategy.workers, self._model
        self._has_begun = True
        if workers.count == 1:
            return
        variables = [
            *model.trainable_variables,
            *model.non_trainable_variables,
            *model.optimizer.variables,
        ]
        values = from_chief(workers, [variable.value for variable in variables])
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        draw_as_chief(workers)

    def begin_epoch(self) -> None:
        """See `Residence`: every worker has changed the same."""

    def advance(self, values: Values, batch: Any) -> tuple[Metrics, Values]:
        """See `Residence`."""
        made: list[tuple[TrainState, Metrics]] = []
        given = values
        state = self._entered(values)
        ids: list[Any] = []
        if self._tables is not None and state.recipe.tables is not None:
            self._tables.follow(state.recipe.tables, values[2])
            batch, ids = self._rows.look_up(state, batch)
        try:
            # Ctrl-C is noticed between two instructions: this is one, and what the step has made of the values whose
            # memory it took over is in the list when it is over.
            made.extend(map(self._step, (state,), (batch,)))
        finally:
            for state, _ in made:
                given = self._left(state)
                self._known = given, state
        state, metrics = self._strategy.engine.replicas.settle(made[0])
        if self._tables is not None:
            metrics = self._rows.update(state, ids, metrics)
        return metrics, given

    def _entered(self, values: Values) -> TrainState:
        """A state of these values, in arrays of its own, which the step takes over: Keras keeps those it has."""
        if self._known is None or values is not self._known[0]:
            if not self._has_begun and self._strategy.workers.count > 1:
                values = taken_from_chief(self._strategy.workers, values)
            self._has_begun = True
            params, others, optimizer, metrics = (
                [jnp.array(local_copy(value), copy=True) for value in each] for each in values
            )
            state = TrainState(params, optimizer, [*others, *metrics], None, np.int32(0), self._recipe)
            self._known = values, self._strategy.engine.lay_out(state)
            self._recipe = self._known[1].recipe
        return self._known[1]

    def _left(self, state: TrainState) -> Values:
        others, metrics = state.flat_state[: self._layers], state.flat_state[self._layers :]
        return state.flat_params, others, state.flat_opt_state, metrics

    @property
    def newest(self) -> Values | None:
        """See `Residence`."""
        return None if self._known is None else self._known[0]

    def settled(self, held: dict[str, Arrays], is_failing: bool) -> dict[str, Arrays]:
        """See `Residence`: each as one array on one device, as Keras had it."""
        if not is_in_reach(held):
            if is_failing:  # the others, who have parts of it, may be gone
                held = held | {
                    "optimizer_variables": [each.value for each in self._model.optimizer.variables]
                }
            elif self._recipe.home.workers is not None:
                held = self._recipe.home.workers.ready(held)
        return {name: [at_home(value) for value in values] for name, values in held.items()}

    def took_back(self) -> None:
        """See `Residence`: nothing to do."""

    def agree(self, is_validation: bool) -> None:
        """See `Residence`: all have the same."""

    def end(self) -> None:
        """See `Residence`: all end together."""

    def end_epoch(self) -> None:
        """See `Residence`."""
        if self._strategy.workers.count > 1:
            stop_with_chief(self._strategy, self._model)


def stop_with_chief(strategy: Strategy, model: Any) -> None:
    """Have workers in step stop if the chief does, and only then."""
    stops = strategy.workers.gather(np.asarray(model.stop_training))
    model.stop_training = bool(stops[0])


def at_home(value: Any) -> Any:
    """An array that is on several devices as one on the first of them."""
    if not isinstance(value, jax.Array) or len(value.sharding.device_set) == 1:
        return value
    first = value.addressable_data(0)
    return first if value.is_fully_replicated else jax.device_put(value, *first.devices())
