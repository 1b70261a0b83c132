"""A compiled Keras model as a `Trainable`, by way of its own `train_step` and the like; its optimizer as an `Updater`.

A model's `train_step` computes gradients and applies them. It is traced with an optimizer that records the gradients
instead, for the strategy to use. So a `train_step` that the user has written works as well.
"""

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras.src.backend import StatelessScope
from keras.src.utils.python_utils import pythonify_logs

from stratagem.errors import StrategyError
from stratagem.keras.embedding import RowLayer, embeddings_of
from stratagem.keras.host_layers import HostBatch, host_layers_of
from stratagem.waist import Arrays, Kind, Metrics, Trainable, Updater
from stratagem.waist.interfaces import natural_kind

_SEED_DISTANCE = 0x9E3779B9
"""The difference between the seeds of two workers."""


class KerasTrainable(Trainable):
    """A built and compiled model.

    Its non-trained state is that of its layers, then that of its metrics: sums, which are added up between workers.

    Args:
        model: The model.
        worker: This worker's index: each draws random numbers of its own.
        reads_optimizer: Whether the optimizer's variables are available while gradients are computed.

    Attributes:
        log_names: The names of the logs that `train_step` returns, once it has been traced.
    """

    def __init__(self, model: Any, worker: int, *, reads_optimizer: bool) -> None:
        self._model = model
        self.reads_optimizer = reads_optimizer
        self.names = unique_paths(model.trainable_variables)
        others = model.non_trainable_variables
        self._layers = len(others)
        self._metrics = len(model.metrics_variables)
        self.kinds: list[Kind] = [natural_kind(variable.value) for variable in others]
        self.kinds += ["sum"] * self._metrics
        self._offsets = [
            _SEED_DISTANCE * worker % 2**32 if variable.path.endswith("seed_generator_state") else 0
            for variable in others
        ]
        self._probes = Probes(embeddings_of(model))
        self._host_layers = host_layers_of(model)
        self.log_names: list[str] = []
        self._updated_metrics: set[str] = set()

    def init(self) -> tuple[Arrays, Arrays]:
        """Return the values that the model's variables have now."""
        model = self._model
        others = [*model.non_trainable_variables, *model.metrics_variables]
        return [each.value for each in model.trainable_variables], [each.value for each in others]

    def loss_and_grad(
        self, params: Arrays, state: Arrays, batch: Any, rng: jax.Array
    ) -> tuple[tuple[jax.Array, Arrays, Metrics], Arrays]:
        others, metrics, optimizer = self._split(state)
        if not self.reads_optimizer:
            # Not available. A step that computes from them would be wrong, but none of Keras's own does.
            optimizer = [
                jnp.zeros(variable.shape, variable.dtype) for variable in self._model.optimizer.variables
            ]
        with (
            self._probes.attached(self._model, params) as (weights, own_places),
            self._recorded_gradients() as calls,
            self._data_of(batch) as data,
        ):
            logs, (_, after, _, metrics_after) = self._model.train_step(
                (weights, self._shift_seeds(others, 1), optimizer, metrics), data
            )
        if len(calls) != 1:
            raise StrategyError(
                f"the train_step of {type(self._model).__name__} called self.optimizer.stateless_apply {len(calls)} times: "
                "a strategy needs the gradients of exactly one call"
            )
        pairs = zip(self._model.metrics_variables, metrics, metrics_after, strict=True)
        self._updated_metrics = {variable.path for variable, old, new in pairs if old is not new}
        logs = {name: jnp.asarray(value, jnp.float32) for name, value in flat_logs(logs).items()}
        self.log_names = list(logs)
        loss = logs.get("loss", jnp.float32(jnp.nan))
        all_grads = [
            jnp.zeros_like(param) if grad is None else grad
            for param, grad in zip(weights, calls[0], strict=True)
        ]
        grads = [all_grads[place] for place in own_places]
        return (loss, [*self._shift_seeds(after, -1), *metrics_after], logs), grads

    def report(self, state: Arrays) -> Metrics:
        """Return the results of the metrics that a step has updated."""
        _, metrics, _ = self._split(state)
        with StatelessScope(state_mapping=list(zip(self._model.metrics_variables, metrics, strict=True))):
            return metric_results(self._model, self._updated_metrics)

    def test(self, params: Arrays, state: Arrays, batch: Any) -> tuple[Metrics, Arrays]:
        """Return the logs of the model's `test_step` on a batch, and the state after it."""
        others, metrics, _ = self._split(state)
        with self._data_of(batch) as data:
            logs, (_, others, metrics) = self._model.test_step((params, others, metrics), data)
        return flat_logs(logs), [*others, *metrics]

    def evaluate(self, params: Arrays, state: Arrays, batch: Any) -> Metrics:
        return self.test(params, state, batch)[0]

    def predict(self, params: Arrays, state: Arrays, batch: Any) -> Any:
        return self.predict_with_state(params, state, batch)[0]

    def predict_with_state(self, params: Arrays, state: Arrays, batch: Any) -> tuple[Any, Arrays]:
        """Return the outputs of the model's `predict_step` for a batch, and the layers' state after it."""
        with self._data_of(batch) as data:
            outputs, others = self._model.predict_step((params, state[: self._layers]), data)
        return outputs, others

    def commit(self, params: Arrays, state: Arrays) -> None:
        """Write values back into the model's variables."""
        model = self._model
        variables = [*model.trainable_variables, *model.non_trainable_variables, *model.metrics_variables]
        for variable, value in zip(variables, [*params, *state], strict=True):
            variable.assign(value)

    def _data_of(self, batch: Any) -> AbstractContextManager[Any]:
        """Yield a batch as the model's own steps take it, with the outputs of layers that the host has computed."""
        if self._host_layers is None or not isinstance(batch, HostBatch):
            return nullcontext(batch)
        return self._host_layers.replayed(batch)

    def _split(self, state: Arrays) -> tuple[Arrays, Arrays, Arrays]:
        """Return the layers' state, the metrics', and whatever there is of the optimizer's."""
        end = self._layers + self._metrics
        return state[: self._layers], state[self._layers : end], state[end:]

    def _shift_seeds(self, others: Arrays, direction: int) -> Arrays:
        """Return the layers' state with this worker's own seeds, or with those that all workers share again."""
        return [
            other if not offset else other.at[0].add(jnp.uint32(direction * offset % 2**32))
            for other, offset in zip(others, self._offsets, strict=True)
        ]

    @contextmanager
    def _recorded_gradients(self) -> Iterator[list[Any]]:
        """Yield the gradients of each call of the optimizer in the block, which updates nothing there."""
        calls: list[Any] = []

        def record(optimizer_variables: Any, grads: Any, trainable_variables: Any) -> tuple[Any, Any]:
            calls.append(list(grads))
            return trainable_variables, optimizer_variables

        optimizer = self._model.optimizer
        object.__setattr__(optimizer, "stateless_apply", record)
        try:
            yield calls
        finally:
            object.__delattr__(optimizer, "stateless_apply")


class KerasUpdater(Updater):
    """An optimizer that has been built for a model's variables."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def init(self, params: Arrays) -> Arrays:
        """Return its variables as they are: moments, iterations, the learning rate."""
        return [variable.value for variable in self._optimizer.variables]

    def update(self, params: Arrays, opt_state: Arrays, grads: Arrays) -> tuple[Arrays, Arrays]:
        optimizer = self._optimizer
        # The class's method: the instance has another while a model's own train_step is traced.
        new, state = type(optimizer).stateless_apply(optimizer, opt_state, grads, params)
        return list(new), list(state)

    def commit(self, opt_state: Arrays) -> None:
        """Write values back into the optimizer's variables."""
        for variable, value in zip(self._optimizer.variables, opt_state, strict=True):
            variable.assign(value)


class Probes:
    """Lets a model's own `train_step`, which knows weights only, also return the gradients of looked-up rows.

    While it is traced, each embedding by row has one weight more: the probe of its look-ups. The gradients of the rows
    arrive there, where `stratagem.tables.lookups` takes them.
    """

    def __init__(self, layers: Sequence[RowLayer]) -> None:
        self._probes = [
            (layer, keras.Variable(np.zeros(()), dtype=layer.variable_dtype, name="probe"))
            for layer in layers
        ]

    @contextmanager
    def attached(self, model: Any, params: Arrays) -> Iterator[tuple[Arrays, list[int]]]:
        """Give the layers their probes for the block.

        Yields:
            The values of all weights that the model has in the block, and the places of its own among them.
        """
        if not self._probes:
            yield params, list(range(len(params)))
            return
        own = {id(each) for each in model.trainable_variables}
        for layer, probe in self._probes:
            # Keras does not let weights be added to a layer that is built.
            layer._trainable_variables.append(probe)
            layer.set_probe(probe)
        try:
            variables = model.trainable_variables
            places = [place for place, each in enumerate(variables) if id(each) in own]
            values = [None if id(each) in own else each.value for each in variables]
            for place, value in zip(places, params, strict=True):
                values[place] = value
            yield values, places
        finally:
            for layer, _ in self._probes:
                layer._trainable_variables.pop()
                layer.set_probe(None)


def flat_logs(logs: Any) -> Metrics:
    """Return logs without nested dictionaries, as Keras shows them to callbacks; traceable."""
    # Tracers are not numbers yet: Keras leaves them as they are.
    return dict(pythonify_logs(logs))


def metric_results(model: Any, paths: Set[str]) -> Metrics:
    """Return the results of those of a model's metrics that have a variable of one of these paths."""
    return flat_logs(
        {
            metric.name: metric.result()
            for metric in model.metrics
            if any(variable.path in paths for variable in metric.variables)
        }
    )


def metric_names(model: Any, values: Arrays) -> list[str]:
    """Return the names of a model's metric results while Keras has taken these values out of its variables."""
    with StatelessScope(state_mapping=list(zip(model.metrics_variables, values, strict=True))):
        return list(model.get_metrics_result())


def unique_paths(variables: Sequence[Any]) -> list[str]:
    """Return the variables' paths; those that several variables share get a number."""
    counts = Counter(variable.path for variable in variables)
    numbers: Counter[str] = Counter()
    names = []
    for variable in variables:
        numbers[variable.path] += 1
        is_shared = counts[variable.path] > 1
        names.append(f"{variable.path}#{numbers[variable.path]}" if is_shared else variable.path)
    return names
