"""The home of a Keras model's values on parameter servers; after training they are in its variables again.

The chief's edits between steps (a new learning rate, `set_weights`) go to the servers; other workers' edits do not count.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.engines.table_trainables import TrainableWithTables
from stratagem.errors import StratagemError, StrategyError
from stratagem.keras.extra_state import (
    ChiefControl,
    WithChiefControl,
    has_loss_scale,
    with_unscaled_gradients,
)
from stratagem.keras.gathering import draw_as_chief, random_state, restore_random_state, seed_random_state
from stratagem.keras.model_tables import ModelTables
from stratagem.keras.trainable import KerasUpdater
from stratagem.keras.value_home import VALUE_NAMES, ValueHome, Values
from stratagem.parameters.exchanges import END, Label
from stratagem.strategies.base import Strategy
from stratagem.tables.table_files import NewRows
from stratagem.waist import Arrays, Metrics, Trainable, TrainState, state_of

_SERVER_METRICS = ("global_step", "dropped", "lost_updates", "staleness")
"""The metrics of a step that are not the model's."""
_BEGUN = "begun fit"
_log = logging.getLogger(__name__)


class ServerValueHome(ValueHome):
    """Values on the parameter servers."""

    def __init__(self, strategy: Strategy, model: Any, tables: ModelTables | None = None) -> None:
        super().__init__(strategy, model, tables, reads_optimizer=has_loss_scale(model.optimizer))
        unscaled, self._optimizer = with_unscaled_gradients(self._trainable, model.optimizer)
        self._with_control = WithChiefControl(unscaled, ChiefControl.new())
        self._updater = KerasUpdater(self._optimizer)
        # The optimizer's variables that stay with this worker: those of a loss scale, which come first.
        self._num_local = len(model.optimizer.variables) - len(self._optimizer.variables)
        self._num_metrics = len(model.metrics_variables)
        self._state: TrainState | None = None
        self._last: Values | None = None
        self._fits = 0
        self._epochs = 0
        self._has_ended = False
        self._agreed: Label | None = None
        self._rates: dict[int, Any] = {}
        self._has_warned = False
        self._rows = None if tables is None else tables.for_training()
        trainable: Trainable = self._with_control
        if self._rows is not None:
            trainable = TrainableWithTables(self._with_control, self._rows.stacks, [])
        self._step = strategy.engine.build(trainable)

    @property
    def server_model(self) -> Any:
        return None if self._state is None or self._served.is_closed else self._served

    @property
    def newest(self) -> Values | None:
        return self._last

    # Before training.

    def begin(self) -> None:
        is_first = self._state is None
        self._begin()
        workers = self._strategy.workers
        if workers.count == 1:
            return
        if self._strategy.feed.takes_turns:
            seed_random_state(self._control.shuffle_seed(self._fits))  # nobody waits for the chief
        elif is_first:
            self._draw_as_chief_at_first()
        else:
            draw_as_chief(workers)

    def _draw_as_chief_at_first(self) -> None:
        """Draw what the chief draws in the first `fit`, even in a worker that has been restarted since."""
        if self._strategy.is_chief and int(self._trained.step) == 0:
            self._served.post_notice(_BEGUN, random_state())
        elif (note := self._served.wait_for_notice(_BEGUN)) is not None:
            restore_random_state(note)
        else:
            # The servers come from a snapshot, which has no notes.
            seed_random_state(self._control.shuffle_seed(self._fits))

    def _begin(self) -> None:
        self._fits += 1
        self._epochs, self._has_ended = 0, False
        if self._state is None:
            fresh = state_of(self._with_control, self._updater)
            recipe = replace(fresh.recipe, tables=self._rows)
            self._state = self._strategy.engine.lay_out(replace(fresh, recipe=recipe))
            if self._tables is not None and self._tables.bring(self._served, int(self._trained.step)):
                self._state = self._served.renew(self._trained)
        else:
            self._send_edits(self._variable_values())
            if not self._strategy.feed.takes_turns:
                # No worker pulls before the chief's edits are on the servers.
                self._strategy.workers.gather(np.asarray(0))
            self._state = self._served.renew(self._state)
        self._write_variables(self._state)
        self.reset_baseline()

    def begin_epoch(self) -> None:
        """Have the chief's edits on the servers before any worker in step with it goes on."""
        feed = self._strategy.feed
        self._epochs += 1
        is_edited = self._send_edits(self._variable_values())
        if not feed.takes_turns:
            is_edited = any(bool(each) for each in self._strategy.workers.gather(np.asarray(is_edited)))
        if is_edited:
            self._state = self._served.renew(self._trained)
        self.reset_baseline()

    # Steps.

    def advance(self, values: Values, batch: Any) -> tuple[Metrics, Values]:
        self._has_ended = False
        state, metrics = self._step(self._state_of(values), batch)
        logs = {name: value for name, value in metrics.items() if name not in _SERVER_METRICS}
        return logs, self._take_step(state)

    def _state_of(self, values: Values) -> TrainState:
        if self._state is None:
            self._begin()
            values = self._baseline
        state = self._trained
        if values is not self._last:
            if self._send_edits(values):
                state = self._served.renew(state)
            # This worker's own: seeds, counters, metrics and the scale of the loss.
            _, others, optimizer, metrics = values
            own = [*others, *metrics, *optimizer[: self._num_local]]
            kinds = state.kinds[: len(own)]
            flat_state = [
                old if kind == "mean" else new
                for kind, old, new in zip(kinds, state.flat_state, own, strict=False)
            ]
            state = replace(state, flat_state=[*flat_state, state.flat_state[-1]])
        return state

    def _take_step(self, state: TrainState) -> Values:
        """Remember the state after a step, and return its values for Keras."""
        before = int(self._trained.step)
        self._state = state
        if int(state.step) < before and self._rates and self._strategy.is_chief:
            self._assign([None] * len(state.flat_params), self._rates, None)  # the servers have rolled back
        if self._control.has_stopped(self._fits):
            self._model.stop_training = True
        end = self._num_layers + self._num_metrics
        local = state.flat_state[end : end + self._num_local]
        self._last = (
            state.flat_params,
            state.flat_state[: self._num_layers],
            [*local, *self._baseline[2][self._num_local :]],
            state.flat_state[self._num_layers : end],
        )
        return self._last

    def settle(self, values: dict[str, Arrays], is_failing: bool) -> dict[str, Arrays]:
        """Return the values of the servers, unless something has failed; those that they do not have are Keras's."""
        if self._state is None:
            return values
        params, others = self._params_and_layers(self._state)
        optimizer = values["optimizer_variables"]
        if not is_failing:
            try:
                self._strategy.feed.rest()
                state = self._served.fetch(self._state)
            except StratagemError as error:
                _log.warning("%s: the last ones count", _unanswered(error))
            else:
                params, others = self._params_and_layers(state)
                optimizer = [*optimizer[: self._num_local], *state.flat_opt_state]
        lists = (params, others, optimizer, values["metrics_variables"])
        return {name: [_copy(value) for value in each] for name, each in zip(VALUE_NAMES, lists, strict=True)}

    def reset_baseline(self) -> None:
        self._last = self._variable_values()

    # After an epoch, and after training.

    def end_epoch(self) -> None:
        """Stop if the chief does; where workers take turns, the others learn of it with their next step."""
        model = self._model
        if not self._strategy.feed.takes_turns:
            self._stop_with_chief()
        elif self._strategy.is_chief and model.stop_training:
            control = self._control.values_with_stop(self._fits)
            self._assign([None] * len(model.trainable_variables), {}, control)

    def agree(self, is_validation: bool) -> None:
        """Agree on the values at the end of training; in an epoch on those at its end for the worker that is first there.

        Values that were edited since, or trained batch by batch, are this worker's own, and evaluated as they are.
        """
        label = self._fits, self._epochs if is_validation else END
        if not self._may_differ or not (is_validation or self._has_ended) or label == self._agreed:
            return
        params, shared, _ = self._edits(self._variable_values())
        if self._served.is_closed or any(each is not None for each in [*params, *shared]):
            return
        try:
            state = self._served.agreed(self._trained, label)
        except StratagemError as error:
            _log.warning("%s: this worker evaluates the values that it has", _unanswered(error))
            return
        self._write_variables(state)
        self._agreed = label
        # Edits of the optimizer's variables are still to be sent.
        self._last = (*self._variable_values()[:2], *self._baseline[2:])

    def end(self) -> None:
        """Tell the other workers, which may wait for this one before they evaluate."""
        if not self._may_differ:
            return
        self._has_ended = True
        try:
            self._served.end_fit(self._fits)
        except StratagemError as error:
            _log.warning("the other workers could not be told that this one has ended its fit: %s", error)
            self._has_ended = False

    @property
    def _may_differ(self) -> bool:
        """True if other workers may have other values."""
        return (
            self._strategy.feed.takes_turns and self._strategy.workers.count > 1 and self._state is not None
        )

    # Edits.

    def _edits(self, values: Values) -> tuple[Arrays, Arrays, dict[int, Any]]:
        """Return what differs from the baseline: parameters, statistics, and the optimizer's variables by place."""
        params, others, optimizer, _ = (
            [None if new is old else new for new, old in zip(now, before, strict=True)]
            for now, before in zip(values, self._baseline, strict=True)
        )
        shared = [
            new if kind == "mean" else None for new, kind in zip(others, self._trained.kinds, strict=False)
        ]
        slots = {place: new for place, new in enumerate(optimizer[self._num_local :]) if new is not None}
        return params, shared, slots

    def _send_edits(self, values: Values) -> bool:
        """Send the chief's edits to the servers; return whether this worker has made edits."""
        params, shared, slots = self._edits(values)
        if not slots and all(each is None for each in [*params, *shared]):
            return False
        if not self._strategy.is_chief:
            if not self._has_warned:
                _log.warning(
                    "this worker has changed variables or hyperparameters of %s, which has no effect: under parameter "
                    "servers only the chief's changes count",
                    self._model.name,
                )
            self._has_warned = True
            return True
        self._rates.update({place: new for place, new in slots.items() if np.ndim(new) == 0})
        self._assign(params, slots, None, shared)
        return True

    def _assign(
        self, params: Arrays, slots: dict[int, Any], control: Any, others: Sequence[Any] = ()
    ) -> None:
        """Set these values on the servers; those that are `None` stay."""
        state = self._trained
        opt_state = [slots.get(place) for place in range(len(self._optimizer.variables))]
        flat_state: Arrays = [*others, *[None] * (len(state.flat_state) - len(others) - 1), control]
        self._served.assign(
            TrainState(params, opt_state, flat_state, None, state.step, state.recipe),
            rows=NewRows(scalars=[] if self._tables is None else self._tables.rates(slots)),
        )

    # The state and its parts.

    @property
    def _trained(self) -> TrainState:
        """The state after the last step, once training has begun."""
        if self._state is None:
            raise StrategyError("the model is not on the parameter servers yet: fit brings it there")
        return self._state

    @property
    def _baseline(self) -> Values:
        """The values that edits are told by: those that Keras was given last."""
        return self._variable_values() if self._last is None else self._last

    @property
    def _served(self) -> Any:
        return self._trained.recipe.home.servers

    @property
    def _control(self) -> ChiefControl:
        return ChiefControl(np.asarray(self._trained.flat_state[-1]))

    def _write_variables(self, state: TrainState) -> None:
        """Write parameters and the layers' state into the variables."""
        params, others = self._params_and_layers(state)
        variables = [*self._model.trainable_variables, *self._model.non_trainable_variables]
        for variable, value in zip(variables, [*params, *others], strict=True):
            variable.assign(_copy(value))

    def _params_and_layers(self, state: TrainState) -> tuple[Arrays, Arrays]:
        return state.flat_params, state.flat_state[: self._num_layers]

    def _variable_values(self) -> Values:
        model = self._model
        lists = (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
        return tuple([variable.value for variable in each] for each in lists)


def _unanswered(error: StratagemError) -> str:
    return f"the parameter servers could not be asked for their values ({error})"


def _copy(value: Any) -> jax.Array:
    """Return a copy: an array from a server may lie in memory that the connection reuses."""
    return jnp.array(value, copy=True)
