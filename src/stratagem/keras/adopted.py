"""One Keras model under a strategy: what its methods do instead of Keras's own."""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from stratagem.keras.companions import accompanied
from stratagem.keras.residence import ORDER, Residence, ResidenceHere, Values, at_home
from stratagem.keras.served import ResidenceOnServers
from stratagem.keras.sums import added_up
from stratagem.keras.trainable import KerasTrainable
from stratagem.strategies.base import Strategy
from stratagem.strategies.rows import count_rows
from stratagem.waist import Arrays


class AdoptedModel:
    """A model and the strategy that trains it.

    Args:
        strategy: The strategy.
        model: The model.
    """

    def __init__(self, strategy: Strategy, model: Any) -> None:
        self.strategy = strategy
        self.model = model
        self._deal: Callable[[Any], Any] = _whole
        self._residence: Residence | None = None
        self._measured_from: Arrays | None = None
        self._adds_up = False
        self._is_failing = False

    # What users call.

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Train, in step with the other workers."""
        bound = _bound(type(self.model).fit, self.model, args, kwargs)
        bound["callbacks"] = accompanied(self, bound.get("callbacks"))
        if not self.strategy.is_chief:
            bound["verbose"] = 0
        return self._safely(partial(type(self.model).fit, self.model, **bound))

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate; workers in step share the rows out, and bring the results together."""
        bound = _bound(type(self.model).evaluate, self.model, args, kwargs)
        if not self.strategy.is_chief:
            bound["verbose"] = 0
        shares = self.strategy.feed.shares_evaluation
        before = self._deal
        self._deal = self.strategy.feed.deal() if shares else _whole
        self._adds_up, self._measured_from = shares, None
        try:
            return self._safely(partial(type(self.model).evaluate, self.model, **bound))
        finally:
            self._deal, self._adds_up = before, False

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Predict all rows; workers in step share them out."""
        bound = _bound(type(self.model).predict, self.model, args, kwargs)
        if not self.strategy.is_chief:
            bound["verbose"] = 0
        return self._safely(partial(type(self.model).predict, self.model, **bound))

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Train on one global batch, or under asynchronous rules on one of this worker's own."""
        before = self._deal
        self._deal = _whole if self.strategy.feed.takes_turns else self.strategy.feed.deal()
        try:
            return self._safely(partial(type(self.model).train_on_batch, self.model, *args, **kwargs))
        finally:
            self._deal = before

    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch, whole on every worker."""
        before, self._deal = self._deal, _whole
        try:
            return self._safely(partial(type(self.model).test_on_batch, self.model, *args, **kwargs))
        finally:
            self._deal = before

    def predict_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Predict one batch."""
        return self._safely(partial(type(self.model).predict_on_batch, self.model, *args, **kwargs))

    # What Keras calls.

    def make_train_function(self, force: bool = False) -> None:
        """One step of the strategy for each batch."""
        model = self.model
        if model.train_function is not None and not force:
            return
        kind = ResidenceOnServers if self.strategy.engine.is_elsewhere else ResidenceHere
        residence: Residence = kind(self.strategy, model)
        self._residence = residence
        replicas = self.strategy.engine.replicas
        told: Any = {}

        def train(values: Values, data: Any) -> tuple[Any, Values]:
            nonlocal told
            state = residence.enter(values)
            if self._measured_from is None:
                self._measured_from = values[3]
            part = self._deal(data)
            if part is None:
                return told, values
            placed = part if replicas.is_placed(part) else replicas.place(part)
            with residence.undisturbed():
                state, metrics = replicas.settle(residence.step(state, placed))
                given = residence.leave(state)
            told = {name: metrics[name] for name in residence.log_names}
            return told, given

        model.train_function = self._over_iterator(train, lambda several: several[-1])

    def make_test_function(self, force: bool = False) -> None:
        """This worker's part of each batch, evaluated on all its devices."""
        model = self.model
        if model.test_function is not None and not force:
            return
        trainable = KerasTrainable(model, 0, reads_optimizer=False)
        replicas = self.strategy.engine.replicas
        test = jax.jit(trainable.test, out_shardings=replicas.whole)
        layers = len(model.non_trainable_variables)
        known: tuple[Values, Values] | None = None
        told: Any = {}

        def evaluate(values: Values, data: Any) -> tuple[Any, Values]:
            nonlocal known, told
            if known is None or values is not known[0]:
                if self._measured_from is None:
                    self._measured_from = values[2]
                known = values, replicas.replicate(values)
            part = self._deal(data)
            if not count_rows(part):
                return told, values
            params, others, metrics = known[1]
            told, state = test(params, [*others, *metrics], replicas.place(part))
            given = (params, state[:layers], state[layers:])
            known = given, given
            return told, given

        model.test_function = self._over_iterator(evaluate, lambda several: several[-1])

    def make_predict_function(self, force: bool = False) -> Any:
        """All rows of each batch, from whichever worker."""
        model = self.model
        if model.predict_function is not None and not force:
            return model.predict_function
        trainable = KerasTrainable(model, 0, reads_optimizer=False)
        replicas, workers = self.strategy.engine.replicas, self.strategy.workers
        guess = jax.jit(trainable.guess, out_shardings=replicas.whole)
        shares = self.strategy.feed.shares_evaluation
        known: tuple[Values, Values] | None = None

        def predict(values: Values, data: Any) -> tuple[Any, Values]:
            nonlocal known
            if known is None or values is not known[0]:
                known = values, replicas.replicate(values)
            params, others = known[1]
            rows = count_rows(data)
            share = shares and rows >= workers.count
            part = self.strategy.feed.deal()(data) if share else data
            outputs, others = guess(params, others, replicas.place(part))
            outputs = jax.tree.map(np.asarray, outputs)
            if share:
                outputs = jax.tree.map(lambda mine: np.concatenate(list(workers.gather(mine))), outputs)
            given = (params, others)
            known = given, given
            return outputs, given

        model.predict_function = self._over_iterator(predict, _concatenated)
        return model.predict_function

    def jax_state_sync(self) -> None:
        """Bring values back into the variables."""
        model = self.model
        held = getattr(model, "_jax_state", None)
        if not held or model._jax_state_synced:
            return
        if self._residence is None:
            model._jax_state = {name: [at_home(value) for value in values] for name, values in held.items()}
        else:
            model._jax_state = self._residence.settled(held, self._is_failing)
        type(model).jax_state_sync(model)
        if self._residence is not None:
            self._residence.took_back()

    def get_metrics_result_or_logs(self, logs: Any) -> Any:
        """The metrics over all workers' rows."""
        model = self.model
        if self._adds_up and self._measured_from is not None:
            measured = [variable.value for variable in model.metrics_variables]
            totals = added_up(self.strategy.workers, self._measured_from, measured)
            for variable, total in zip(model.metrics_variables, totals, strict=True):
                variable.assign(total)
        return type(model)._get_metrics_result_or_logs(model, logs)

    # What goes on around them.

    def begin_training(self) -> None:
        """Before the first epoch."""
        if self._residence is not None:
            self._residence.begin()

    def begin_epoch(self) -> None:
        """Before an epoch: its batches are dealt out anew, and its metrics counted."""
        feed = self.strategy.feed
        self._deal, self._measured_from = feed.deal(), None
        # Workers in step each know the metrics of all, but where servers train.
        self._adds_up = self.strategy.engine.is_elsewhere and not feed.takes_turns

    def end_epoch(self) -> None:
        """After an epoch."""
        self._adds_up = False
        if self._residence is not None:
            self._residence.end_epoch()

    def _over_iterator(
        self, step: Callable[[Values, Any], tuple[Any, Values]], join: Callable[..., Any]
    ) -> Any:
        """A function over Keras's iterators: as many steps of it as are to be made in one go."""
        model = self.model

        def function(values: Values, iterator: Iterator[Any]) -> tuple[Any, Values]:
            outputs = []
            try:
                for number in range(model.steps_per_execution):
                    try:
                        data = next(iterator)
                    except StopIteration:
                        if number == 0:
                            raise
                        break
                    told, values = step(values, data)
                    outputs.append(told)
            except StopIteration:
                raise
            except BaseException:
                self._keep(values)
                raise
            return join(outputs), values

        return function

    def _keep(self, values: Values) -> None:
        """Have Keras find these values, or those that a step has made of them, whatever happens to be raised now."""
        self._is_failing = True
        if _are_gone(values):
            newest = None if self._residence is None else self._residence.newest
            if newest is None or _are_gone(newest):
                return
            values = newest
        names = list(ORDER)
        if len(values) == 3:
            names.remove("optimizer_variables")
        self.model._jax_state = dict(zip(names, values, strict=False))
        self.model._jax_state_synced = False

    def _safely(self, call: Callable[[], Any]) -> Any:
        """Keras takes the values out of the variables while it computes: bring them back if it fails."""
        try:
            return call()
        except BaseException:
            self._is_failing = True
            self.jax_state_sync()
            self.model._jax_state = None
            raise
        finally:
            self._is_failing = False


def _are_gone(values: Values) -> bool:
    """Whether a step has taken over the memory of some."""
    return any(isinstance(value, jax.Array) and value.is_deleted() for each in values for value in each)


def _whole(batch: Any) -> Any:
    return batch


def _concatenated(several: list[Any]) -> Any:
    if len(several) == 1:
        return several[0]
    return jax.tree.map(lambda *parts: np.concatenate(parts), *several)


def _bound(
    method: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by name, also where the user's own method hides Keras's."""
    signature = inspect.signature(method)
    bound = signature.bind(model, *args, **kwargs)
    named = dict(list(bound.arguments.items())[1:])
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named.update(named.pop(parameter.name, {}))
    return named
