"""A Keras model under a strategy: its methods do what is here instead of Keras's own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import jax
import numpy as np

from stratagem.engines.feeds import Deal
from stratagem.errors import StratagemError
from stratagem.keras.callbacks import as_list, change_files, worker_callbacks
from stratagem.keras.epoch_batches import NO_BATCH, keep_own_batches, with_dense_arrays
from stratagem.keras.evaluation import Evaluation
from stratagem.keras.gathering import add_up, mean_logs, random_state_kept
from stratagem.keras.host_layers import host_layers_of, with_strings
from stratagem.keras.method_arguments import named_arguments, with_pipelines
from stratagem.keras.model_tables import ModelTables, tables_of
from stratagem.keras.server_value_home import ServerValueHome
from stratagem.keras.trainable import flat_logs, metric_names, metric_results
from stratagem.keras.value_home import VALUE_NAMES, LocalValueHome, ValueHome, Values
from stratagem.strategies.base import Strategy
from stratagem.tables.lookups import ids_keep_their_bits
from stratagem.waist import Arrays


class AdoptedModel:
    """A model and the strategy that trains it."""

    def __init__(self, strategy: Strategy, model: Any) -> None:
        self.strategy = strategy
        self.model = model
        self._deal: Deal = _unchanged
        self._home: ValueHome | None = None
        self._evaluation: Evaluation | None = None
        self._metrics_before: Arrays | None = None
        self._adds_up = False
        self._keeps_own = False
        self._run_host_layers: Callable[[Any], Any] = _unchanged
        self._is_failing = False
        self._is_training = False

    # Methods that users call.

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Train, in step with the other workers."""
        arguments = with_strings(self.model, self._arguments("fit", args, kwargs))
        files = self.strategy.workers.files
        callbacks = as_list(arguments.get("callbacks"))
        arguments["callbacks"] = worker_callbacks(
            callbacks,
            is_chief=self.strategy.is_chief,
            begin_training=self._begin_training,
            begin_epoch=self._begin_epoch,
            end_epoch=self._end_epoch,
        )
        takes_turns = self.strategy.feed.takes_turns
        self._keeps_own = takes_turns or self._looks_ahead
        self._next_call()
        self._is_training = True
        # Workers that take turns draw the order of batches from a seed of their own, not from the script's.
        draws_apart = takes_turns and self.strategy.workers.count > 1
        try:
            with (
                with_pipelines("fit", arguments) as named,
                random_state_kept() if draws_apart else nullcontext(),
            ):
                history = self._safely(partial(type(self.model).fit, self.model, **named))
        finally:
            self._keeps_own = self._is_training = False
            self._next_call()
        if self._home is not None:
            self._home.end()
        if files is not None and change_files(callbacks):
            files.catch_up("to end fit, and with it what its callbacks write")
        return history

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate; workers in step share out the rows and combine their results, others agree on the values."""
        arguments = with_strings(self.model, self._arguments("evaluate", args, kwargs))
        self.agree(arguments.get("_use_cached_eval_dataset", False))
        shares = self.strategy.feed.shares_evaluation
        with with_pipelines("evaluate", arguments) as named, self._dealing(self._evaluation_deal(), shares):
            return self._safely(partial(type(self.model).evaluate, self.model, **named))

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Predict all rows; workers in step share them out."""
        arguments = with_strings(self.model, self._arguments("predict", args, kwargs))
        self.agree()
        with with_pipelines("predict", arguments) as named, self._dealing(self._evaluation_deal()):
            return self._safely(partial(type(self.model).predict, self.model, **named))

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Train on one global batch, or under asynchronous rules on one of this worker's own."""
        model = self.model
        arguments = named_arguments("train_on_batch", model, args, kwargs)
        return_dict = arguments.pop("return_dict", False)
        self._next_call()
        with self._dealing(self._training_deal(), self._adds_up_later):
            logs = self._safely(partial(type(model).train_on_batch, model, return_dict=True, **arguments))
            if self._adds_up:
                logs = flat_logs(self.get_metrics_result_or_logs(logs))
        return logs if return_dict else model._flatten_metrics_in_order(logs)

    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch, whole on every worker."""
        with self._dealing(_unchanged):
            return self._safely(partial(type(self.model).test_on_batch, self.model, *args, **kwargs))

    def predict_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Predict one batch."""
        with self._dealing(self._evaluation_deal()):
            return self._safely(partial(type(self.model).predict_on_batch, self.model, *args, **kwargs))

    # What saving and loading need.

    def agree(self, is_validation: bool = False) -> None:
        """Take values that all workers evaluate, where each may have others."""
        if self._home is not None:
            self._home.agree(is_validation)

    def take_over(self, path: Any) -> None:
        """Take over the values of a file, except during training, when those on the servers count."""
        if not self._is_training:
            type(self.model).load_weights(self.model, path)  # rows of tables are on the servers
            if self._home is not None:
                self._home.reset_baseline()

    @property
    def server_model(self) -> Any:
        """The model on the servers, while they train it; `None` if they do not."""
        return None if self._home is None else self._home.server_model

    def tables(self) -> ModelTables | None:
        """Return the tables of the model, as it is built now."""
        return tables_of(self.strategy, self.model)

    # How batches are dealt out.

    def _arguments(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        arguments = named_arguments(method, self.model, args, kwargs)
        if not self.strategy.is_chief:
            arguments["verbose"] = 0
        return arguments

    def _next_call(self) -> None:
        """Count a call that all workers make: the count tells the others how far the chief is."""
        if self.strategy.workers.files is not None:
            self.strategy.workers.files.next_call()

    @property
    def _adds_up_later(self) -> bool:
        """True if workers in step have to add their metrics up: not where each step does that."""
        return self.strategy.engine.is_elsewhere and not self.strategy.feed.takes_turns

    @property
    def _looks_ahead(self) -> bool:
        """True if steps are to know the batches that follow: the rows that these need come with a push."""
        return self.strategy.engine.is_elsewhere and self.tables() is not None

    def _share_of(self, deal: Deal, batch: Any) -> Any:
        """Return this worker's share of a batch; `None` if it has none."""
        share = deal(with_dense_arrays(batch))
        return None if share is None else self._run_host_layers(share)

    def _training_deal(self) -> Deal:
        """Return how batches to train on are dealt out; where workers take turns each is its own already."""
        return _unchanged if self.strategy.feed.takes_turns else self.strategy.feed.deal()

    def _evaluation_deal(self) -> Deal:
        """Return how batches to evaluate or predict are dealt out."""
        if not self.strategy.feed.shares_evaluation:
            return _unchanged
        self._next_call()
        return self.strategy.feed.deal()

    @contextmanager
    def _dealing(self, deal: Deal, adds_up: bool = False) -> Iterator[None]:
        """Deal batches out in this way in the block, with metrics of its own; afterwards as before."""
        before = self._deal, self._adds_up, self._metrics_before, self._keeps_own
        self._deal, self._adds_up, self._metrics_before, self._keeps_own = deal, adds_up, None, False
        try:
            yield
        finally:
            self._deal, self._adds_up, self._metrics_before, self._keeps_own = before

    # Methods that Keras calls.

    def symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Build the model before anything else; `fit` passes in the iterator over its batches."""
        has_tables, host_layers = self.tables() is not None, host_layers_of(self.model)
        if iterator is not None and (has_tables or host_layers is not None):
            # Keras would move batches to the accelerator one step ahead: 32 bits of each id, and no strings.
            iterator._one_batch_ahead_iterator = _unchanged
        build = partial(type(self.model)._symbolic_build, self.model)
        with ids_keep_their_bits() if has_tables else nullcontext():
            if host_layers is None:
                build(iterator=iterator, data_batch=data_batch)
            else:
                with host_layers.building() as convert:
                    epoch = iter(()) if iterator is None else iterator
                    converted = ((*each, map(convert, own)) for *each, own in epoch)
                    build(iterator=converted, data_batch=None if data_batch is None else convert(data_batch))
        if self._keeps_own and iterator is not None:
            keep_own_batches(iterator, self.strategy, self._share_of, self._looks_ahead)

    def make_train_function(self, force: bool = False) -> None:
        """Make one step of the strategy for each batch."""
        model = self.model
        if model.train_function is not None and not force:
            return
        tables = self.tables()
        self._home = home = (
            ServerValueHome(self.strategy, model, tables)
            if self.strategy.engine.is_elsewhere
            else LocalValueHome(self.strategy, model, tables)
        )
        replicas, files = self.strategy.engine.replicas, self.strategy.workers.files
        self._run_host_layers = run_host_layers = host_layers_of(model) or _unchanged

        def train(values: Values, data: Any) -> tuple[Any, Values]:
            if data is NO_BATCH:
                return dict.fromkeys(home.log_names or metric_names(model, values[3]), np.nan), values
            if self._metrics_before is None:
                self._metrics_before = values[3]
            if files is not None:
                files.next_batch()
            share = run_host_layers(self._deal(data))
            # Ids are looked up on the host, where they have all their bits.
            batch = share if tables is not None or replicas.is_placed(share) else replicas.place(share)
            metrics, values = home.advance(values, batch)
            return {name: metrics[name] for name in home.log_names or metrics}, values

        model.train_function = self._over_iterator(train, _last)

    def make_test_function(self, force: bool = False) -> None:
        """Evaluate this worker's share of each batch on all its devices."""
        model = self.model
        if model.test_function is not None and not force:
            return
        evaluation = Evaluation(self.strategy, model, self._home is not None, self.tables())

        def test(values: Values, data: Any) -> tuple[Any, Values]:
            self._evaluation = evaluation
            if self._metrics_before is None:
                self._metrics_before = values[2]
            return evaluation.test(values, self._deal(data))

        model.test_function = self._over_iterator(test, _last)

    def make_predict_function(self, force: bool = False) -> Any:
        """Predict all rows of each batch, on whichever worker."""
        model = self.model
        if model.predict_function is not None and not force:
            return model.predict_function
        evaluation = Evaluation(self.strategy, model, self._home is not None, self.tables())

        def predict(values: Values, data: Any) -> tuple[Any, Values]:
            self._evaluation = evaluation
            return evaluation.predict(values, data, self._deal)

        model.predict_function = self._over_iterator(predict, _concatenated)
        return model.predict_function

    def jax_state_sync(self) -> None:
        """Write values back into the variables."""
        model = self.model
        values = getattr(model, "_jax_state", None)
        if not values or model._jax_state_synced:
            return
        home = self._home if "optimizer_variables" in values else None
        if home is not None:
            model._jax_state = home.settle(values, self._is_failing)
        elif self._evaluation is not None:
            model._jax_state = self._evaluation.settle(values)
        type(model).jax_state_sync(model)
        if home is not None:
            home.reset_baseline()

    def get_metrics_result_or_logs(self, logs: Any) -> Any:
        """Return the metrics over all workers' rows."""
        model = self.model
        if self._adds_up and self._metrics_before is not None:
            variables = model.metrics_variables
            totals = add_up(self.strategy.workers, self._metrics_before, [each.value for each in variables])
            changed = set()
            for variable, old, total in zip(variables, self._metrics_before, totals, strict=True):
                variable.assign(total)
                if not np.array_equal(old, total):
                    changed.add(variable.path)
            if self._evaluation is not None and self.strategy.feed.shares_evaluation:
                logs = mean_logs(self.strategy.workers, self._evaluation.rows, logs)
            results = metric_results(model, changed)
            logs = {name: results.get(name, value) for name, value in logs.items()}
        if not logs:
            # A worker without rows has no logs, but it knows the metrics of all.
            return model.get_metrics_result()
        if self._metrics_before is None:
            return logs  # there was no batch, so the metrics are of none either
        return type(model)._get_metrics_result_or_logs(model, logs)

    # Callbacks of ours.

    def _begin_training(self) -> None:
        if self._home is not None:
            self._home.begin()

    def _begin_epoch(self) -> None:
        """Deal out the batches of an epoch anew, and measure its metrics by themselves."""
        self._deal, self._metrics_before = _unchanged if self._keeps_own else self._training_deal(), None
        self._adds_up = self._adds_up_later
        if self._home is not None:
            self._home.begin_epoch()

    def _end_epoch(self) -> None:
        self._adds_up = False
        if self._home is not None:
            self._home.end_epoch()

    # Steps over Keras's iterators, and what becomes of values when one fails.

    def _over_iterator(
        self, step: Callable[[Values, Any], tuple[Any, Values]], join: Callable[[list[Any]], Any]
    ) -> Any:
        """Return a function over Keras's iterators that makes as many steps as are to be made at once."""
        model = self.model

        def function(values: Values, iterator: Iterator[Any]) -> tuple[Any, Values]:
            outputs: list[Any] = []
            try:
                while len(outputs) < model.steps_per_execution:
                    try:
                        data = with_dense_arrays(next(iterator))
                    except StopIteration:
                        if not outputs:
                            raise
                        break
                    output, values = step(values, data)
                    outputs.append(output)
            except StopIteration:
                raise
            except BaseException as error:
                self._save_values(values, error)
                raise
            return join(outputs), values

        return function

    def _save_values(self, values: Values, error: BaseException) -> None:
        """Have Keras find these values, or those that a step has made of them, whatever error is being raised."""
        self._is_failing = isinstance(error, StratagemError)
        if _are_deleted(values):
            newest = None if self._home is None else self._home.newest
            if newest is None or _are_deleted(newest):
                return
            values = newest
        names = list(VALUE_NAMES)
        if len(values) == 3:
            names.remove("optimizer_variables")
        self.model._jax_state = dict(zip(names, values, strict=False))
        self.model._jax_state_synced = False

    def _safely(self, call: Callable[[], Any]) -> Any:
        """Call Keras, which takes values out of the variables while it computes; write them back if it fails."""
        try:
            return call()
        except BaseException as error:
            self._is_failing = isinstance(error, StratagemError)
            self.jax_state_sync()
            self.model._jax_state = None
            raise
        finally:
            self._is_failing = False


def _are_deleted(values: Values) -> bool:
    """Return whether a step has taken over the memory of some values."""
    return any(isinstance(value, jax.Array) and value.is_deleted() for each in values for value in each)


def _unchanged(batch: Any) -> Any:
    return batch


def _last(outputs: list[Any]) -> Any:
    return outputs[-1]


def _concatenated(outputs: list[Any]) -> Any:
    if len(outputs) == 1:
        return outputs[0]
    return jax.tree.map(lambda *parts: np.concatenate(parts), *outputs)
