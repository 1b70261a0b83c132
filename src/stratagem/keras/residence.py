"""Where a Keras model's values are while it is trained: with this process, as its own variables were."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.keras.interrupts import interrupts_deferred
from stratagem.keras.sums import from_chief
from stratagem.keras.trainable import KerasTrainable
from stratagem.keras.updater import KerasUpdater
from stratagem.strategies.base import Strategy
from stratagem.strategies.engines import Step
from stratagem.waist import Arrays, TrainState, state_of

Values: TypeAlias = tuple[Arrays, ...]
"""What Keras passes to its functions and takes from them: lists of values, in an order of its own."""
ORDER = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
"""That of a train function."""


class Residence(Protocol):
    """The values of a model in training."""

    @property
    def step(self) -> Step:
        """The step that trains them."""
        ...

    @property
    def log_names(self) -> list[str]:
        """What the model's `train_step` tells."""
        ...

    def begin(self) -> None:
        """Before training: all workers begin with the chief's values, and draw the same random orders."""
        ...

    def enter(self, values: Values) -> TrainState:
        """A state of the values that Keras passes in."""
        ...

    def leave(self, state: TrainState) -> Values:
        """What Keras is given of a state."""
        ...

    @property
    def newest(self) -> Values | None:
        """What Keras was given last, or would have been."""
        ...

    def undisturbed(self) -> AbstractContextManager[object]:
        """A block that Ctrl-C does not leave half-way, if that would lose values."""
        ...

    def settled(self, held: dict[str, Arrays], is_failing: bool) -> dict[str, Arrays]:
        """What is to go back into the variables, of what Keras has held meanwhile."""
        ...

    def took_back(self) -> None:
        """The variables have their values again."""
        ...

    def end_epoch(self) -> None:
        """After an epoch: who stops, stops with all."""
        ...


class ResidenceHere:
    """Values on the devices of this process; on those of every worker alike, if there are several.

    Args:
        strategy: The strategy.
        model: The model, built and compiled.
    """

    def __init__(self, strategy: Strategy, model: Any) -> None:
        self._strategy = strategy
        self._model = model
        trainable = KerasTrainable(model, strategy.workers.index, reads_optimizer=True)
        self._trainable = trainable
        self._recipe = state_of(trainable, KerasUpdater(model.optimizer)).recipe
        self._layers = len(model.non_trainable_variables)
        self._known: tuple[Values, TrainState] | None = None
        self.step = strategy.engine.build(trainable)

    @property
    def log_names(self) -> list[str]:
        """See `Residence`."""
        return self._trainable.log_names

    def begin(self) -> None:
        """See `Residence`."""
        workers, model = self._strategy.workers, self._model
        if workers.count == 1:
            return
        variables = [
            *model.trainable_variables,
            *model.non_trainable_variables,
            *model.optimizer.variables,
        ]
        seed = np.asarray(np.random.randint(2**31))
        *values, seed = from_chief(workers, [*(variable.value for variable in variables), seed])
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        np.random.seed(int(seed))

    def enter(self, values: Values) -> TrainState:
        """See `Residence`; in arrays of its own, which the step takes over: Keras keeps those it has."""
        if self._known is None or values is not self._known[0]:
            params, others, optimizer, metrics = (
                [jnp.array(value, copy=True) for value in each] for each in values
            )
            state = TrainState(params, optimizer, [*others, *metrics], None, np.int32(0), self._recipe)
            self._known = values, self._strategy.engine.lay_out(state)
            self._recipe = self._known[1].recipe
        return self._known[1]

    def leave(self, state: TrainState) -> Values:
        """See `Residence`."""
        others, metrics = state.flat_state[: self._layers], state.flat_state[self._layers :]
        values = (state.flat_params, others, state.flat_opt_state, metrics)
        self._known = values, state
        return values

    @property
    def newest(self) -> Values | None:
        """See `Residence`."""
        return None if self._known is None else self._known[0]

    def undisturbed(self) -> AbstractContextManager[object]:
        """See `Residence`; where others may keep it waiting, Ctrl-C comes first."""
        return interrupts_deferred() if self._strategy.workers.count == 1 else nullcontext()

    def settled(self, held: dict[str, Arrays], is_failing: bool) -> dict[str, Arrays]:
        """See `Residence`: each as one array on one device, as Keras had it."""
        return {name: [at_home(value) for value in values] for name, values in held.items()}

    def took_back(self) -> None:
        """See `Residence`: nothing to do."""

    def end_epoch(self) -> None:
        """See `Residence`."""
        workers = self._strategy.workers
        if workers.count > 1:
            stops = workers.gather(np.asarray(self._model.stop_training))
            self._model.stop_training = bool(stops[0])


def at_home(value: Any) -> Any:
    """An array that is the same on several devices as one on the first of them."""
    is_spread = isinstance(value, jax.Array) and len(value.sharding.device_set) > 1
    return value.addressable_data(0) if is_spread else value
