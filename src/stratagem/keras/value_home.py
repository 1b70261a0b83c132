"""Where a Keras model's values live while it trains: the interface, and the home in this process."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.devices.global_arrays import is_in_reach, local_copy
from stratagem.engines.local_tables import TableSteps
from stratagem.engines.table_trainables import TrainableWithTables
from stratagem.keras.gathering import chief_arrays, chief_values, draw_as_chief
from stratagem.keras.model_tables import ModelTables
from stratagem.keras.trainable import KerasTrainable, KerasUpdater
from stratagem.strategies.base import Strategy
from stratagem.waist import Arrays, Metrics, TrainState, state_of

Values: TypeAlias = tuple[Arrays, ...]
"""Lists of values, as Keras passes them to its functions and takes them back, in an order of its own."""
VALUE_NAMES = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
"""The order of a train function's lists."""


class ValueHome(ABC):
    """The values of a model in training.

    Args:
        strategy: The strategy.
        model: The model, built and compiled.
        tables: Its tables, if it has some.
        reads_optimizer: Whether the optimizer's variables are available while gradients are computed.
    """

    def __init__(
        self, strategy: Strategy, model: Any, tables: ModelTables | None, *, reads_optimizer: bool
    ) -> None:
        self._strategy = strategy
        self._model = model
        self._tables = tables
        self._trainable = KerasTrainable(model, strategy.workers.index, reads_optimizer=reads_optimizer)
        self._num_layers = len(model.non_trainable_variables)

    @property
    def log_names(self) -> list[str]:
        """The names of the logs of the model's `train_step`, once it has been traced."""
        return self._trainable.log_names

    @property
    @abstractmethod
    def server_model(self) -> Any:
        """The model on the servers, while they train it; `None` if they do not."""

    @property
    @abstractmethod
    def newest(self) -> Values | None:
        """The values after the last step, whether or not Keras has received them."""

    @abstractmethod
    def begin(self) -> None:
        """Prepare training: all workers begin with the chief's values, and draw the same random numbers."""

    @abstractmethod
    def begin_epoch(self) -> None:
        """Prepare an epoch, after callbacks have made their changes."""

    @abstractmethod
    def advance(self, values: Values, batch: Any) -> tuple[Metrics, Values]:
        """Make one step from the values that Keras passes in, and return the metrics and the values after it."""

    @abstractmethod
    def settle(self, values: dict[str, Arrays], is_failing: bool) -> dict[str, Arrays]:
        """Return the values to write back into the variables, given those that Keras has had meanwhile."""

    @abstractmethod
    def reset_baseline(self) -> None:
        """Take the variables' present values as the baseline: whatever differs from them later is an edit."""

    @abstractmethod
    def agree(self, is_validation: bool) -> None:
        """Before an evaluation, bring values that all workers share into the variables, if they are not in step.

        Args:
            is_validation: Whether it is the validation of an epoch, not an evaluation of its own.
        """

    @abstractmethod
    def end_epoch(self) -> None:
        """End an epoch: if the chief stops training, all workers do."""

    @abstractmethod
    def end(self) -> None:
        """End training."""

    def _stop_with_chief(self) -> None:
        """Make workers in step stop if the chief does, and only then."""
        stops = self._strategy.workers.gather(np.asarray(self._model.stop_training))
        self._model.stop_training = bool(stops[0])


class LocalValueHome(ValueHome):
    """Values on the devices of this process; several workers all have the same."""

    def __init__(self, strategy: Strategy, model: Any, tables: ModelTables | None = None) -> None:
        super().__init__(strategy, model, tables, reads_optimizer=True)
        updater = KerasUpdater(model.optimizer)
        self._recipe = state_of(self._trainable, updater).recipe
        self._last: tuple[Values, TrainState] | None = None
        self._has_begun = False
        if tables is None:
            self._step = strategy.engine.build(self._trainable)
        else:
            rows = tables.for_training()
            self._recipe = replace(self._recipe, tables=rows)
            with_rows = TrainableWithTables(self._trainable, rows.stacks, updater.init([]))
            self._rows = TableSteps(strategy.engine, with_rows)
            self._step = self._rows.dense

    @property
    def server_model(self) -> None:
        return None

    @property
    def newest(self) -> Values | None:
        return None if self._last is None else self._last[0]

    def begin(self) -> None:
        workers, model = self._strategy.workers, self._model
        self._has_begun = True
        if workers.count == 1:
            return
        variables = [
            *model.trainable_variables,
            *model.non_trainable_variables,
            *model.optimizer.variables,
        ]
        values = chief_arrays(workers, [variable.value for variable in variables])
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        draw_as_chief(workers)

    def begin_epoch(self) -> None:
        """Do nothing: every worker has made the same changes."""

    def advance(self, values: Values, batch: Any) -> tuple[Metrics, Values]:
        results: list[tuple[TrainState, Metrics]] = []
        after = values
        state = self._state_of(values)
        ids: list[Any] = []
        if self._tables is not None and state.recipe.tables is not None:
            self._tables.follow(state.recipe.tables, values[2])
            batch, ids = self._rows.look_up(state, batch)
        try:
            # Ctrl-C takes effect between two instructions. This is one: when it is over, the list has the result of the
            # step, which took over the memory of the values.
            results.extend(map(self._step, (state,), (batch,)))
        finally:
            for state, _ in results:
                after = self._values_of(state)
                self._last = after, state
        state, metrics = self._strategy.engine.replicas.settle(results[0])
        if self._tables is not None:
            metrics = self._rows.update(state, ids, metrics)
        return metrics, after

    def _state_of(self, values: Values) -> TrainState:
        """Return a state of these values, in copies: the step takes its arrays over, and Keras keeps its own."""
        if self._last is None or values is not self._last[0]:
            if not self._has_begun and self._strategy.workers.count > 1:
                values = chief_values(self._strategy.workers, values)
            self._has_begun = True
            params, others, optimizer, metrics = (
                [jnp.array(local_copy(value), copy=True) for value in each] for each in values
            )
            state = TrainState(params, optimizer, [*others, *metrics], None, np.int32(0), self._recipe)
            self._last = values, self._strategy.engine.lay_out(state)
            self._recipe = self._last[1].recipe
        return self._last[1]

    def _values_of(self, state: TrainState) -> Values:
        others, metrics = state.flat_state[: self._num_layers], state.flat_state[self._num_layers :]
        return state.flat_params, others, state.flat_opt_state, metrics

    def settle(self, values: dict[str, Arrays], is_failing: bool) -> dict[str, Arrays]:
        """Return each value as one array on one device, as Keras had it."""
        if not is_in_reach(values):
            if is_failing:  # the other workers, which have parts of them, may be gone
                variables = self._model.optimizer.variables
                values = values | {"optimizer_variables": [each.value for each in variables]}
            elif self._recipe.home.workers is not None:
                values = self._recipe.home.workers.ready(values)
        return {name: [on_one_device(value) for value in each] for name, each in values.items()}

    def reset_baseline(self) -> None:
        """Do nothing: values that Keras passes in are recognised as its own."""

    def agree(self, is_validation: bool) -> None:
        """Do nothing: all workers have the same values."""

    def end_epoch(self) -> None:
        if self._strategy.workers.count > 1:
            self._stop_with_chief()

    def end(self) -> None:
        """Do nothing: all workers end together."""


def on_one_device(value: Any) -> Any:
    """Return an array that is on several devices as one on the first of them."""
    if not isinstance(value, jax.Array) or len(value.sharding.device_set) == 1:
        return value
    first = value.addressable_data(0)
    return first if value.is_fully_replicated else jax.device_put(value, *first.devices())
