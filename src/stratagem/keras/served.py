"""Where a Keras model's values are while parameter servers train it: there, and back in its variables afterwards.

The chief's edits between steps (a new learning rate, `set_weights`) go to the servers; those of others do not count.
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
from stratagem.keras.control import Control, Controlled
from stratagem.keras.model_tables import ModelTables
from stratagem.keras.random_state import draw_as_chief, packed, restore, seed
from stratagem.keras.residence import ORDER, Values, stop_with_chief
from stratagem.keras.scaling import is_scaling, unscaled
from stratagem.keras.trainable import KerasTrainable
from stratagem.keras.updater import KerasUpdater
from stratagem.parameters.agreements import END, Label
from stratagem.strategies.base import Strategy
from stratagem.tables.table_files import NewRows
from stratagem.waist import Arrays, Metrics, Trainable, TrainState, state_of

_OF_SERVERS = ("global_step", "dropped", "lost_updates", "staleness")
"""What a step tells beside what the model does."""
_BEGUN = "begun fit"
_log = logging.getLogger(__name__)


class ResidenceOnServers:
    """Values on the parameter servers.

    Args:
        strategy: The strategy.
        model: The model, built and compiled.
        tables: Its tables, if it has some.
    """

    def __init__(self, strategy: Strategy, model: Any, tables: ModelTables | None = None) -> None:
        self._strategy = strategy
        self._model = model
        self._trainable = KerasTrainable(
            model, strategy.workers.index, reads_optimizer=is_scaling(model.optimizer)
        )
        scaled, optimizer = unscaled(self._trainable, model.optimizer)
        self._controlled = Controlled(scaled, Control.new())
        self._optimizer = optimizer
        self._updater = KerasUpdater(optimizer)
        # The optimizer's variables that stay here: those of a loss scale come first.
        self._kept = len(model.optimizer.variables) - len(optimizer.variables)
        self._layers = len(model.non_trainable_variables)
        self._metrics = len(model.metrics_variables)
        self._state: TrainState | None = None
        self._given: Values | None = None
        self._fits = 0
        self._epochs = 0
        self._has_ended = False
        self._agreed: Label | None = None
        self._rates: dict[int, Any] = {}
        self._has_warned = False
        self._tables = tables
        self._rows = None if tables is None else tables.for_training()
        trained: Trainable = self._controlled
        if self._rows is not None:
            trained = TrainableWithTables(self._controlled, self._rows.stacks, [])
        self._step = strategy.engine.build(trained)

    @property
    def log_names(self) -> list[str]:
        """See `Residence`."""
        return self._trainable.log_names

    @property
    def served(self) -> Any:
        """See `Residence`."""
        return None if self._state is None or self._served.is_closed else self._served

    # Before and after.

    def begin(self) -> None:
        """See `Residence`."""
        is_first = self._state is None
        self._begin()
        workers = self._strategy.workers
        if workers.count == 1:
            return
        if self._strategy.feed.takes_turns:
            seed(self._control.order_of(self._fits))  # nobody waits for the chief
        elif is_first:
            self._draw_as_noted()
        else:
            draw_as_chief(workers)

    def _draw_as_noted(self) -> None:
        """Draw what the chief draws in the first `fit`, also in a worker that was started again since."""
        if self._strategy.is_chief and int(self._trained.step) == 0:
            self._served.post_notice(_BEGUN, packed())
        elif (note := self._served.wait_for_notice(_BEGUN)) is not None:
            restore(note)
        else:
            seed(self._control.order_of(self._fits))  # the servers come from a snapshot, which has no notes

    def _begin(self) -> None:
        self._fits += 1
        self._epochs, self._has_ended = 0, False
        if self._state is None:
            fresh = state_of(self._controlled, self._updater)
            recipe = replace(fresh.recipe, tables=self._rows)
            self._state = self._strategy.engine.lay_out(replace(fresh, recipe=recipe))
            if self._tables is not None and self._tables.bring(self._served, int(self._trained.step)):
                self._state = self._served.renew(self._trained)
        else:
            self._take_edits(self._from_variables())
            if not self._strategy.feed.takes_turns:
                # The chief's changes are there before anybody looks.
                self._strategy.workers.gather(np.asarray(0))
            self._state = self._served.renew(self._state)
        self._take(self._state)
        self._given = self._from_variables()

    def begin_epoch(self) -> None:
        """See `Residence`: the chief's changes are on the servers before anybody in step with it goes on."""
        strategy = self._strategy
        self._epochs += 1
        is_edited = self._take_edits(self._from_variables())
        if not strategy.feed.takes_turns:
            is_edited = any(bool(each) for each in strategy.workers.gather(np.asarray(is_edited)))
        if is_edited:
            self._state = self._served.renew(self._trained)
        self._given = self._from_variables()

    def end_epoch(self) -> None:
        """See `Residence`: the chief's word reaches the others with their next step."""
        strategy, model = self._strategy, self._model
        if not strategy.feed.takes_turns:
            stop_with_chief(strategy, model)
        elif strategy.is_chief and model.stop_training:
            self._assign([None] * len(model.trainable_variables), {}, self._control.stopping(self._fits))

    # Steps.

    def advance(self, values: Values, batch: Any) -> tuple[Metrics, Values]:
        """See `Residence`."""
        self._has_ended = False
        state, metrics = self._step(self._entered(values), batch)
        told = {name: value for name, value in metrics.items() if name not in _OF_SERVERS}
        return told, self._left(state)

    def _entered(self, values: Values) -> TrainState:
        if self._state is None:
            self._begin()
            values = self._handed
        state = self._trained
        if values is not self._given:
            edited = self._take_edits(values)
            if edited:
                state = self._served.renew(state)
            # What is this worker's own: seeds, counters, metrics and the scale of the loss.
            _, others, optimizer, metrics = values
            own = [*others, *metrics, *optimizer[: self._kept]]
            kinds = state.kinds[: len(own)]
            mixed = [
                old if kind == "mean" else new
                for kind, old, new in zip(kinds, state.flat_state, own, strict=False)
            ]
            state = replace(state, flat_state=[*mixed, state.flat_state[-1]])
        return state

    def _left(self, state: TrainState) -> Values:
        before = int(self._trained.step)
        self._state = state
        if int(state.step) < before and self._rates and self._strategy.is_chief:
            self._assign([None] * len(state.flat_params), self._rates, None)  # the servers went back
        if self._control.has_stopped(self._fits):
            self._model.stop_training = True
        end = self._layers + self._metrics
        kept = state.flat_state[end : end + self._kept]
        optimizer = [*kept, *self._handed[2][self._kept :]]
        self._given = (
            state.flat_params,
            state.flat_state[: self._layers],
            optimizer,
            state.flat_state[self._layers : end],
        )
        return self._given

    @property
    def newest(self) -> Values | None:
        """See `Residence`."""
        return self._given

    def settled(self, held: dict[str, Arrays], is_failing: bool) -> dict[str, Arrays]:
        """See `Residence`: what servers hold of it from there, unless something has failed."""
        if self._state is None:
            return held
        params, others = self._params_and_layers(self._state)
        optimizer = held["optimizer_variables"]
        if not is_failing:
            try:
                self._strategy.feed.rest()
                fetched = self._served.fetch(self._state)
            except StratagemError as error:
                _log.warning("%s: the last ones count", _unanswered(error))
            else:
                params, others = self._params_and_layers(fetched)
                optimizer = [*optimizer[: self._kept], *fetched.flat_opt_state]
        told = (params, others, optimizer, held["metrics_variables"])
        return {name: [_own(value) for value in values] for name, values in zip(ORDER, told, strict=True)}

    def took_back(self) -> None:
        """The variables have their values: what differs from these later has been edited."""
        self._given = self._from_variables()

    # Evaluations.

    def agree(self, is_validation: bool) -> None:
        """See `Residence`: after training the values at its end, in an epoch those at its end for who is first there.

        What was edited since, or trained batch by batch, is this worker's own, and evaluated as it is.
        """
        label = self._fits, self._epochs if is_validation else END
        if not self._has_others or not (is_validation or self._has_ended) or label == self._agreed:
            return
        params, shared, _ = self._edits(self._from_variables())
        if self._served.is_closed or any(each is not None for each in [*params, *shared]):
            return
        try:
            agreed = self._served.agreed(self._trained, label)
        except StratagemError as error:
            _log.warning("%s: this worker evaluates the values that it has", _unanswered(error))
            return
        self._take(agreed)
        self._agreed = label
        # What was edited of the optimizer is still to be sent.
        self._given = (*self._from_variables()[:2], *self._handed[2:])

    def end(self) -> None:
        """See `Residence`: the others may wait for this worker before they evaluate."""
        if not self._has_others:
            return
        self._has_ended = True
        try:
            self._served.end_fit(self._fits)
        except StratagemError as error:
            _log.warning("the other workers could not be told that this one has ended its fit: %s", error)
            self._has_ended = False

    @property
    def _has_others(self) -> bool:
        """Whether there are workers that may have other values."""
        return (
            self._strategy.feed.takes_turns and self._strategy.workers.count > 1 and self._state is not None
        )

    # Edits.

    def _edits(self, values: Values) -> tuple[Arrays, Arrays, dict[int, Any]]:
        """What is not as it was handed out: parameters, statistics, and the optimizer's variables by place."""
        params, others, optimizer, _ = (
            [None if new is old else new for new, old in zip(now, before, strict=True)]
            for now, before in zip(values, self._handed, strict=True)
        )
        shared = [
            new if kind == "mean" else None for new, kind in zip(others, self._trained.kinds, strict=False)
        ]
        slots = {place: new for place, new in enumerate(optimizer[self._kept :]) if new is not None}
        return params, shared, slots

    def _take_edits(self, values: Values) -> bool:
        """Send what is not as it was handed out to the servers; whether something was sent."""
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
        for place, new in slots.items():
            if np.ndim(new) == 0:
                self._rates[place] = new
        self._assign(params, slots, None, shared)
        return True

    def _assign(
        self,
        params: Arrays,
        slots: dict[int, Any],
        control: Any,
        others: Sequence[Any] = (),
    ) -> None:
        state = self._trained
        count = len(self._optimizer.variables)
        held: Arrays = [*others, *[None] * (len(state.flat_state) - len(others) - 1), control]
        self._served.assign(
            TrainState(
                params, [slots.get(place) for place in range(count)], held, None, state.step, state.recipe
            ),
            rows=NewRows(scalars=[] if self._tables is None else self._tables.rates(slots)),
        )

    # Parts.

    @property
    def _trained(self) -> TrainState:
        """The state as it was last seen, once training has begun."""
        if self._state is None:
            raise StrategyError("the model is not on the parameter servers yet: fit brings it there")
        return self._state

    @property
    def _handed(self) -> Values:
        """What Keras was given last."""
        return self._from_variables() if self._given is None else self._given

    @property
    def _served(self) -> Any:
        return self._trained.recipe.home.servers

    @property
    def _control(self) -> Control:
        return Control(np.asarray(self._trained.flat_state[-1]))

    def _take(self, state: TrainState) -> None:
        """Take parameters and the layers' state into the variables."""
        params, others = self._params_and_layers(state)
        variables = [*self._model.trainable_variables, *self._model.non_trainable_variables]
        for variable, value in zip(variables, [*params, *others], strict=True):
            variable.assign(_own(value))

    def _params_and_layers(self, state: TrainState) -> tuple[Arrays, Arrays]:
        return state.flat_params, state.flat_state[: self._layers]

    def _from_variables(self) -> Values:
        return tuple([variable.value for variable in each] for each in self._variables())

    def _variables(self) -> list[Sequence[Any]]:
        model = self._model
        return [
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        ]


def _unanswered(error: StratagemError) -> str:
    return f"the parameter servers could not be asked for their values ({error})"


def _own(value: Any) -> jax.Array:
    """An array of our own: what came from a server may lie in memory that it wants back."""
    return jnp.array(value, copy=True)
