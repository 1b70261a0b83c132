"""One Keras model under a strategy: what its methods do instead of Keras's own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.experimental.sparse import JAXSparse
from keras.src.backend import StatelessScope

from stratagem.engines.feeds import Deal
from stratagem.errors import StratagemError
from stratagem.keras.arguments import named_arguments
from stratagem.keras.companions import accompanied, leave_files, listed
from stratagem.keras.evaluation import Evaluation
from stratagem.keras.host_layers import host_layers_of, with_strings
from stratagem.keras.model_tables import ModelTables, tables_of
from stratagem.keras.own_batches import NOT_ONE, keep_own_batches
from stratagem.keras.pipelines import with_pipelines
from stratagem.keras.random_state import undisturbed
from stratagem.keras.residence import ORDER, Residence, ResidenceHere, Values
from stratagem.keras.served import ResidenceOnServers
from stratagem.keras.sums import added_up, mean_logs
from stratagem.keras.trainable import flattened, metric_results
from stratagem.strategies.base import Strategy
from stratagem.tables.lookups import ids_keep_their_bits
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
        self._deal: Deal = _whole
        self._residence: Residence | None = None
        self._evaluation: Evaluation | None = None
        self._measured_from: Arrays | None = None
        self._adds_up = False
        self._keeps_own = False
        self._on_host: Callable[[Any], Any] = _whole
        self._is_failing = False
        self._is_training = False

    # What users call.

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Train, in step with the other workers."""
        bound = with_strings(self.model, named_arguments("fit", self.model, args, kwargs))
        files = self.strategy.workers.files
        given = listed(bound.get("callbacks"))
        bound["callbacks"] = accompanied(self, given)
        if not self.strategy.is_chief:
            bound["verbose"] = 0
        self._keeps_own = self.strategy.feed.takes_turns or self._looks_ahead
        self._next_call()
        self._is_training = True
        try:
            apart = undisturbed() if self._draws_apart else nullcontext()
            with with_pipelines("fit", bound) as taken, apart:
                history = self._safely(partial(type(self.model).fit, self.model, **taken))
        finally:
            self._keeps_own = self._is_training = False
            self._next_call()
        if self._residence is not None:
            self._residence.end()
        if files is not None and leave_files(given):
            files.catch_up("to end fit, and with it what its callbacks write")
        return history

    def agree(self, is_validation: bool = False) -> None:
        """Take the values that all workers look at, where each may have others."""
        if self._residence is not None:
            self._residence.agree(is_validation)

    def take_over(self, path: Any) -> None:
        """Take over the values of a file, but in a training, which goes by those on the servers."""
        if not self._is_training:
            type(self.model).load_weights(self.model, path)  # rows of tables are on the servers
            if self._residence is not None:
                self._residence.took_back()

    @property
    def _draws_apart(self) -> bool:
        """Whether workers draw the orders of batches from a seed of their own, not from what the script is seeded with."""
        return self.strategy.workers.count > 1 and self.strategy.feed.takes_turns

    def _next_call(self) -> None:
        """Begin or end a call that all workers make: by these the others know how far the chief is."""
        if self.strategy.workers.files is not None:
            self.strategy.workers.files.next_call()

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate; workers in step share the rows out, and bring the results together; others agree on the values."""
        bound = with_strings(self.model, named_arguments("evaluate", self.model, args, kwargs))
        if not self.strategy.is_chief:
            bound["verbose"] = 0
        self.agree(bound.get("_use_cached_eval_dataset", False))
        shares = self.strategy.feed.shares_evaluation
        with with_pipelines("evaluate", bound) as given, self._dealing(self._evaluation_deal(), shares):
            return self._safely(partial(type(self.model).evaluate, self.model, **given))

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Predict all rows; workers in step share them out."""
        bound = with_strings(self.model, named_arguments("predict", self.model, args, kwargs))
        if not self.strategy.is_chief:
            bound["verbose"] = 0
        self.agree()
        with with_pipelines("predict", bound) as given, self._dealing(self._evaluation_deal()):
            return self._safely(partial(type(self.model).predict, self.model, **given))

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Train on one global batch, or under asynchronous rules on one of this worker's own."""
        model = self.model
        bound = named_arguments("train_on_batch", model, args, kwargs)
        wants_dict = bound.pop("return_dict", False)
        self._next_call()
        with self._dealing(self._training_deal(), self._is_summed_later):
            logs = self._safely(partial(type(model).train_on_batch, model, return_dict=True, **bound))
            if self._adds_up:
                logs = flattened(self.get_metrics_result_or_logs(logs))
        return logs if wants_dict else model._flatten_metrics_in_order(logs)

    @property
    def _is_summed_later(self) -> bool:
        """Whether workers in step have to bring their metrics together: not where each step does that."""
        return self.strategy.engine.is_elsewhere and not self.strategy.feed.takes_turns

    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch, whole on every worker."""
        with self._dealing(_whole):
            return self._safely(partial(type(self.model).test_on_batch, self.model, *args, **kwargs))

    def predict_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Predict one batch."""
        with self._dealing(self._evaluation_deal()):
            return self._safely(partial(type(self.model).predict_on_batch, self.model, *args, **kwargs))

    @property
    def _looks_ahead(self) -> bool:
        """Whether steps want to know the batches to follow: the rows that these need come with a push."""
        return self.strategy.engine.is_elsewhere and self.tables() is not None

    def _own_part(self, deal: Deal, batch: Any) -> Any:
        """What this worker trains on of a batch; `None` if that is another's."""
        part = deal(_dense(batch))
        return None if part is None else self._on_host(part)

    def _training_deal(self) -> Deal:
        """How batches are dealt out that this worker trains on; where workers take turns they are its own already."""
        return _whole if self.strategy.feed.takes_turns else self.strategy.feed.deal()

    def _evaluation_deal(self) -> Deal:
        """How batches are dealt out that are only looked at."""
        if not self.strategy.feed.shares_evaluation:
            return _whole
        self._next_call()
        return self.strategy.feed.deal()

    @contextmanager
    def _dealing(self, deal: Deal, adds_up: bool = False) -> Iterator[None]:
        """Deal batches out so in the block, and measure anew; then go on with what was before."""
        before = self._deal, self._adds_up, self._measured_from, self._keeps_own
        self._deal, self._adds_up, self._measured_from, self._keeps_own = deal, adds_up, None, False
        try:
            yield
        finally:
            self._deal, self._adds_up, self._measured_from, self._keeps_own = before

    # What Keras calls.

    def symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Build the model before anything else; here `fit` shows the iterator over its batches."""
        has_tables, on_host = self.tables() is not None, host_layers_of(self.model)
        if iterator is not None and (has_tables or on_host is not None):
            # Keras would bring batches to the accelerator one step ahead, with only 32 bits of each id and without strings.
            iterator._one_batch_ahead_iterator = _whole
        build = partial(type(self.model)._symbolic_build, self.model)
        with ids_keep_their_bits() if has_tables else nullcontext():
            if on_host is None:
                build(iterator=iterator, data_batch=data_batch)
            else:
                with on_host.building() as seen:
                    one = (
                        iter(()) if iterator is None else ((*each, map(seen, own)) for *each, own in iterator)
                    )
                    build(iterator=one, data_batch=None if data_batch is None else seen(data_batch))
        if self._keeps_own and iterator is not None:
            keep_own_batches(iterator, self.strategy, self._looks_ahead, self._own_part)

    def make_train_function(self, force: bool = False) -> None:
        """One step of the strategy for each batch."""
        model = self.model
        if model.train_function is not None and not force:
            return
        kind = ResidenceOnServers if self.strategy.engine.is_elsewhere else ResidenceHere
        tables = self.tables()
        residence: Residence = kind(self.strategy, model, tables)
        self._residence = residence
        replicas, files = self.strategy.engine.replicas, self.strategy.workers.files
        self._on_host = on_host = host_layers_of(model) or _whole

        def train(values: Values, data: Any) -> tuple[Any, Values]:
            if data is NOT_ONE:
                return dict.fromkeys(residence.log_names or _metric_names(model, values[3]), np.nan), values
            if self._measured_from is None:
                self._measured_from = values[3]
            if files is not None:
                files.next_batch()
            part = on_host(self._deal(data))
            # Ids are looked up where they have all their bits.
            placed = part if tables is not None or replicas.is_placed(part) else replicas.place(part)
            metrics, values = residence.advance(values, placed)
            return {name: metrics[name] for name in residence.log_names or metrics}, values

        model.train_function = self._over_iterator(train, _last)

    def make_test_function(self, force: bool = False) -> None:
        """This worker's part of each batch, evaluated on all its devices."""
        model = self.model
        if model.test_function is not None and not force:
            return
        evaluation = Evaluation(self.strategy, model, self._residence is not None, self.tables())

        def test(values: Values, data: Any) -> tuple[Any, Values]:
            self._evaluation = evaluation
            if self._measured_from is None:
                self._measured_from = values[2]
            return evaluation.test(values, self._deal(data))

        model.test_function = self._over_iterator(test, _last)

    def make_predict_function(self, force: bool = False) -> Any:
        """All rows of each batch, from whichever worker."""
        model = self.model
        if model.predict_function is not None and not force:
            return model.predict_function
        evaluation = Evaluation(self.strategy, model, self._residence is not None, self.tables())

        def guess(values: Values, data: Any) -> tuple[Any, Values]:
            self._evaluation = evaluation
            return evaluation.guess(values, data, self._deal)

        model.predict_function = self._over_iterator(guess, _concatenated)
        return model.predict_function

    def jax_state_sync(self) -> None:
        """Bring values back into the variables."""
        model = self.model
        held = getattr(model, "_jax_state", None)
        if not held or model._jax_state_synced:
            return
        trained = self._residence if "optimizer_variables" in held else None
        if trained is not None:
            model._jax_state = trained.settled(held, self._is_failing)
        elif self._evaluation is not None:
            model._jax_state = self._evaluation.settled(held)
        type(model).jax_state_sync(model)
        if trained is not None:
            trained.took_back()

    def get_metrics_result_or_logs(self, logs: Any) -> Any:
        """The metrics over all workers' rows."""
        model = self.model
        if self._adds_up and self._measured_from is not None:
            measured = [variable.value for variable in model.metrics_variables]
            totals = added_up(self.strategy.workers, self._measured_from, measured)
            touched = set()
            for variable, old, total in zip(
                model.metrics_variables, self._measured_from, totals, strict=True
            ):
                variable.assign(total)
                if not np.array_equal(old, total):
                    touched.add(variable.path)
            if self._evaluation is not None and self.strategy.feed.shares_evaluation:
                logs = mean_logs(self.strategy.workers, self._evaluation.rows, logs)
            results = metric_results(model, touched)
            logs = {name: results.get(name, value) for name, value in logs.items()}
        if not logs:
            # Who had no rows has no logs either, but knows the metrics of all.
            return model.get_metrics_result()
        if self._measured_from is None:
            return logs  # of no batch: the metrics are of none either
        return type(model)._get_metrics_result_or_logs(model, logs)

    @property
    def served(self) -> Any:
        """The model on the servers, while they train it; `None` if they do not."""
        return None if self._residence is None else self._residence.served

    def tables(self) -> ModelTables | None:
        """The tables of the model, as it is built now."""
        return tables_of(self.strategy, self.model)

    # What goes on around them.

    def begin_training(self) -> None:
        """Before the first epoch."""
        if self._residence is not None:
            self._residence.begin()

    def begin_epoch(self) -> None:
        """Before an epoch: its batches are dealt out anew, and its metrics counted."""
        self._deal, self._measured_from = _whole if self._keeps_own else self._training_deal(), None
        self._adds_up = self._is_summed_later
        if self._residence is not None:
            self._residence.begin_epoch()

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
                        data = _dense(next(iterator))
                    except StopIteration:
                        if number == 0:
                            raise
                        break
                    told, values = step(values, data)
                    outputs.append(told)
            except StopIteration:
                raise
            except BaseException as error:
                self._keep(values, error)
                raise
            return join(outputs), values

        return function

    def _keep(self, values: Values, error: BaseException) -> None:
        """Have Keras find these values, or those that a step has made of them, whatever happens to be raised now."""
        self._is_failing = isinstance(error, StratagemError)
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
        except BaseException as error:
            self._is_failing = isinstance(error, StratagemError)
            self.jax_state_sync()
            self.model._jax_state = None
            raise
        finally:
            self._is_failing = False


def _metric_names(model: Any, values: Arrays) -> list[str]:
    """What the metrics of a model tell, of which Keras has taken the values out."""
    with StatelessScope(state_mapping=list(zip(model.metrics_variables, values, strict=True))):
        return list(model.get_metrics_result())


def _are_gone(values: Values) -> bool:
    """Whether a step has taken over the memory of some."""
    return any(isinstance(value, jax.Array) and value.is_deleted() for each in values for value in each)


def _whole(batch: Any) -> Any:
    return batch


def _dense(batch: Any) -> Any:
    """A batch whose rows can be told apart: what sparse arrays are made of has other rows than they have."""
    if not any(map(_is_sparse, jax.tree.leaves(batch, is_leaf=_is_sparse))):
        return batch  # itself, by which steps know it
    return jax.tree.map(lambda leaf: leaf.todense() if _is_sparse(leaf) else leaf, batch, is_leaf=_is_sparse)


def _is_sparse(leaf: Any) -> bool:
    return isinstance(leaf, JAXSparse)


def _last(several: list[Any]) -> Any:
    return several[-1]


def _concatenated(several: list[Any]) -> Any:
    if len(several) == 1:
        return several[0]
    return jax.tree.map(lambda *parts: np.concatenate(parts), *several)
