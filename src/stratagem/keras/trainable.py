"""A compiled Keras model as a `Trainable`, by way of its own `train_step`, `test_step` and `predict_step`.

Its `train_step` computes gradients and applies them; it is traced with an optimizer that keeps the gradients instead,
so that a strategy can do with them what it does. Models with a `train_step` of the user's work alike.
"""

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
from keras.src.backend import StatelessScope
from keras.src.utils.python_utils import pythonify_logs

from stratagem.errors import StrategyError
from stratagem.keras.embedding import embeddings_of
from stratagem.keras.host_layers import HostBatch, host_layers_of
from stratagem.keras.probes import Probes
from stratagem.waist import Arrays, Kind, Metrics, Trainable
from stratagem.waist.interfaces import natural_kind

_APART = 0x9E3779B9
"""How far apart the seeds of two workers are."""


class KerasTrainable(Trainable):
    """A built and compiled model.

    Its non-trained state is that of its layers, then that of its metrics: sums, which are added up between workers.

    Args:
        model: The model.
        worker: Which worker this is: each draws random numbers of its own.
        reads_optimizer: Whether the optimizer's variables can be had while gradients are computed.
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
            _APART * worker % 2**32 if variable.path.endswith("seed_generator_state") else 0
            for variable in others
        ]
        self._probes = Probes(embeddings_of(model))
        self._host_layers = host_layers_of(model)
        self.log_names: list[str] = []
        """What `train_step` tells, once it has been traced."""
        self._touched: set[str] = set()

    def init(self) -> tuple[Arrays, Arrays]:
        """The values that the model's variables have now."""
        model = self._model
        kept = [*model.non_trainable_variables, *model.metrics_variables]
        return [variable.value for variable in model.trainable_variables], [
            variable.value for variable in kept
        ]

    def loss_and_grad(
        self, params: Arrays, state: Arrays, batch: Any, rng: jax.Array
    ) -> tuple[tuple[jax.Array, Arrays, Metrics], Arrays]:
        others, metrics, optimizer = self._split(state)
        if not self.reads_optimizer:
            # Not to be had: what a step computes from them would be wrong, and none of Keras's own does.
            optimizer = [
                jnp.zeros(variable.shape, variable.dtype) for variable in self._model.optimizer.variables
            ]
        with (
            self._probes.along(self._model, params) as (given, own_places),
            self._kept_gradients() as kept,
            self._data_of(batch) as data,
        ):
            logs, (_, after, _, measured) = self._model.train_step(
                (given, self._moved(others, 1), optimizer, metrics), data
            )
        if len(kept) != 1:
            raise StrategyError(
                f"the train_step of {type(self._model).__name__} called self.optimizer.stateless_apply {len(kept)} times: "
                "a strategy needs the gradients of exactly one call"
            )
        pairs = zip(self._model.metrics_variables, metrics, measured, strict=True)
        self._touched = {variable.path for variable, old, new in pairs if old is not new}
        logs = {name: jnp.asarray(value, jnp.float32) for name, value in flattened(logs).items()}
        self.log_names = list(logs)
        loss = logs.get("loss", jnp.float32(jnp.nan))
        all_grads = [
            jnp.zeros_like(param) if grad is None else grad
            for param, grad in zip(given, kept[0], strict=True)
        ]
        grads = [all_grads[place] for place in own_places]
        return (loss, [*self._moved(after, -1), *measured], logs), grads

    def report(self, state: Arrays) -> Metrics:
        """The results of the metrics that a step has updated."""
        _, metrics, _ = self._split(state)
        with StatelessScope(state_mapping=list(zip(self._model.metrics_variables, metrics, strict=True))):
            return metric_results(self._model, self._touched)

    def test(self, params: Arrays, state: Arrays, batch: Any) -> tuple[Metrics, Arrays]:
        """What `test_step` tells of a batch, and the state after it."""
        others, metrics, _ = self._split(state)
        with self._data_of(batch) as data:
            logs, (_, others, metrics) = self._model.test_step((params, others, metrics), data)
        return flattened(logs), [*others, *metrics]

    def evaluate(self, params: Arrays, state: Arrays, batch: Any) -> Metrics:
        return self.test(params, state, batch)[0]

    def predict(self, params: Arrays, state: Arrays, batch: Any) -> Any:
        return self.guess(params, state, batch)[0]

    def guess(self, params: Arrays, state: Arrays, batch: Any) -> tuple[Any, Arrays]:
        """What `predict_step` makes of a batch, and the layers' state after it."""
        with self._data_of(batch) as data:
            outputs, others = self._model.predict_step((params, state[: self._layers]), data)
        return outputs, others

    def commit(self, params: Arrays, state: Arrays) -> None:
        """Take values back into the model's variables."""
        model = self._model
        variables = [*model.trainable_variables, *model.non_trainable_variables, *model.metrics_variables]
        for variable, value in zip(variables, [*params, *state], strict=True):
            variable.assign(value)

    def _data_of(self, batch: Any) -> AbstractContextManager[Any]:
        """A batch as the model's own steps take it, and for the block what was made of it before."""
        if self._host_layers is None or not isinstance(batch, HostBatch):
            return nullcontext(batch)
        return self._host_layers.given(batch)

    def _split(self, state: Arrays) -> tuple[Arrays, Arrays, Arrays]:
        """The layers' state, the metrics', and what there is of the optimizer's."""
        end = self._layers + self._metrics
        return state[: self._layers], state[self._layers : end], state[end:]

    def _moved(self, others: Arrays, direction: int) -> Arrays:
        """The layers' state with this worker's own seeds, or with all workers' again."""
        return [
            other if not offset else other.at[0].add(jnp.uint32(direction * offset % 2**32))
            for other, offset in zip(others, self._offsets, strict=True)
        ]

    @contextmanager
    def _kept_gradients(self) -> Iterator[list[Any]]:
        kept: list[Any] = []

        def keep(optimizer_variables: Any, grads: Any, trainable_variables: Any) -> tuple[Any, Any]:
            kept.append(list(grads))
            return trainable_variables, optimizer_variables

        optimizer = self._model.optimizer
        object.__setattr__(optimizer, "stateless_apply", keep)
        try:
            yield kept
        finally:
            object.__delattr__(optimizer, "stateless_apply")


def flattened(logs: Any) -> Metrics:
    """Logs without dictionaries in them, as Keras shows them to callbacks; traceable."""
    # What is being traced is no number yet: Keras leaves it as it is.
    return dict(pythonify_logs(logs))


def metric_results(model: Any, touched: Set[str]) -> Metrics:
    """The results of those of a model's metrics that have variables of these paths."""
    return flattened(
        {
            metric.name: metric.result()
            for metric in model.metrics
            if any(variable.path in touched for variable in metric.variables)
        }
    )


def unique_paths(variables: Sequence[Any]) -> list[str]:
    """The variables' paths; those that several share get a number."""
    counts = Counter(variable.path for variable in variables)
    seen: Counter[str] = Counter()
    names = []
    for variable in variables:
        seen[variable.path] += 1
        is_shared = counts[variable.path] > 1
        names.append(f"{variable.path}#{seen[variable.path]}" if is_shared else variable.path)
    return names
