"""How gradients become updates on parameter servers: computed here, pushed there, new parameters brought back."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from stratagem.engines.engine import Step
from stratagem.engines.parameter_age import Age
from stratagem.engines.replicas import Lookahead, Replicas
from stratagem.engines.row_steps import placed
from stratagem.engines.row_trainable import ROW_GRADIENTS, LooksUpRows
from stratagem.engines.rows import count_rows
from stratagem.engines.served_gradients import served_gradients
from stratagem.engines.served_rows import RowsOfBatch, ServedRows
from stratagem.engines.server_workers import ServerWorkers
from stratagem.engines.step_log import StepLog
from stratagem.errors import StrategyError
from stratagem.keep import ShardRecord, TensorEntry
from stratagem.parameters.agreements import Label
from stratagem.parameters.client import ServerClient
from stratagem.parameters.planning import JobOptions, ModelPlan
from stratagem.parameters.push import Contribution, Outcome
from stratagem.parameters.rendezvous import Rendezvous
from stratagem.parameters.rules import Async, Sync
from stratagem.parameters.server_rows import ServerRows
from stratagem.tables.row_source import RowSource
from stratagem.tables.table import Table
from stratagem.tables.table_files import NO_ROWS, NewRows
from stratagem.waist import Arrays, Metrics, Trainable, TrainState
from stratagem.waist.state import Parting


class ParameterServerEngine:
    """Variables on the parameter servers; every worker computes, with its devices in step.

    Args:
        replicas: The devices of this worker.
        workers: The workers.
        options: The servers, and how they update.
    """

    is_elsewhere = True

    def __init__(self, replicas: Replicas, workers: ServerWorkers, options: JobOptions) -> None:
        self.replicas = replicas
        self._workers = workers
        self._options = options
        self._models = 0

    def tables(self, tables: Sequence[Table], optimizer: Any) -> RowSource:
        """Rows on the servers."""
        # While a push is under way there is no asking for the rows of the next step: they came with the push before.
        self.replicas.lookahead = Lookahead(2 if _overlaps(self._options) else 1)
        return ServerRows(tables, optimizer)

    def lay_out(self, state: TrainState) -> TrainState:
        """Bring a state to the servers, or join those who have; what comes back has the parameters only."""
        plan = ModelPlan(f"model-{self._models}", state, state.recipe.names, self._options)
        self._models += 1
        workers = self._workers
        client = ServerClient(
            workers.server, workers.index, workers.is_chief, plan, lambda: plan.initial(state)
        )
        client.connect()
        model = _Served(plan, client, _overlaps(self._options), workers, state)
        if isinstance(state.recipe.tables, ServerRows):
            state.recipe.tables.client, state.recipe.tables.settle = client, model.settle
        workers.use(model)
        recipe = replace(state.recipe, served=model)
        empty = TrainState([], [], list(state.flat_state), None, np.int32(0), recipe)
        return model.renewed(empty, client.pull())

    def build(self, trainable: Trainable) -> Step:
        """Compute, push, take what comes back."""
        index, replicas = self._workers.index, self.replicas
        averages = isinstance(self._options.rule, Sync)
        renews = not averages and not _overlaps(self._options)
        on_devices = _same if replicas.read_host_memory else replicas.replicate
        host = np.asarray if len(replicas) == 1 else _one_copy
        log = StepLog()

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            model: _Served = state.recipe.served  # type: ignore[assignment]
            rows = count_rows(batch, of_nothing=0)
            tables = following = needed = of_tables = None
            if isinstance(trainable, LooksUpRows):
                tables = model.tables_of(trainable)
                if not tables.are_here(batch):
                    state = model.caught_up(state)
                ahead = None if replicas.lookahead is None else replicas.lookahead.after(batch)
                following = tables.following(state.flat_params, ahead)
            others, own, gradients, commons = state.flat_state, {}, model.nothing, []
            if rows:
                compute = model.compiled.get(step)
                if compute is None:
                    compute = model.compiled[step] = jax.jit(
                        _compute(trainable, model.plan, index, averages), out_shardings=replicas.whole
                    )
                for is_last in (not renews, True):
                    before = state
                    if renews:
                        state = model.freshened(state)
                    given = batch
                    if tables is not None:
                        if needed is None or state is not before:
                            key = partial(_key, state, index)
                            needed = tables.needed(state.flat_params, batch, key)
                        if needed.values is None or state is not before:
                            tables.bring(needed)
                        given = placed(replicas, batch, needed.values or [], needed.needed.places)
                    grads, others, own, commons = compute(
                        on_devices(state.flat_params),
                        on_devices(state.flat_state),
                        np.int32(state.step),
                        state.recipe.seed,
                        given,
                    )
                    gradients = model.plan.scatter([host(grad) for grad in grads])
                    # What was compiled, or stood still, is computed once more, on parameters of now.
                    if model.age.was_as_ever() or is_last:
                        break
                if needed is not None:
                    of_tables = needed.gradients([host(each) for each in own.pop(ROW_GRADIENTS)])
            readings = {name: host(value).tolist() for name, value in own.items()} if averages else {}
            shared = [host(common) for common in commons]
            wanted = None if following is None else following.wanted()
            base = int(state.step)
            outcome = model.push(
                Contribution(rows, gradients, shared, readings, base, of_tables, wanted), following
            )
            metrics = own
            if averages and outcome.metrics:
                metrics = {
                    name: np.asarray(value) if isinstance(value, list) else value
                    for name, value in outcome.metrics.items()
                }
            log.count(rows, outcome.update, metrics)
            client = model.client
            report = {**metrics, "global_step": outcome.update, "dropped": client.dropped}
            report["lost_updates"] = client.lost_updates
            if outcome.staleness is not None:
                report["staleness"] = outcome.staleness
            return model.renewed(state, outcome, others), report

        return step


def _overlaps(options: JobOptions) -> bool:
    return isinstance(options.rule, Async) and options.rule.overlap


def _compute(trainable: Trainable, plan: ModelPlan, index: int, averages: bool) -> Any:
    """Gradients, differences of the shared state, and what they have in common; to be compiled."""

    def compute(
        params: Arrays, others: Arrays, step: Any, seed: Any, batch: Any
    ) -> tuple[Arrays, Arrays, Metrics, Arrays]:
        rng = _fold(seed, step, index)
        return served_gradients(trainable, plan, params, others, batch, rng, alone=not averages)

    return compute


def _fold(seed: Any, step: Any, index: int) -> jax.Array:
    """The key of one worker's step."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), index)


def _key(state: TrainState, index: int) -> jax.Array:
    return _fold(state.recipe.seed, np.int32(state.step), index)


def _same(arrays: Arrays) -> Arrays:
    """A single CPU device reads arrays of the host in place."""
    return arrays


def _one_copy(array: Any) -> Any:
    """Of an array that is on every device, what the host sees of one."""
    return np.asarray(array if array.is_fully_replicated else array.addressable_data(0))


def _with_rows(outcome: Outcome, following: RowsOfBatch | None) -> Outcome:
    """What came of a push, when the rows that came with it are where the step finds them that needs them."""
    if following is not None and outcome.rows is not None:
        following.take(outcome.rows)
    return outcome


class _Served:
    """One model on the servers, as this worker trains it.

    Args:
        plan: Who holds what.
        client: Calls the servers.
        overlaps: Whether to compute on while a push is under way.
        workers: The workers, of whom the chief may set values.
        state: The state as it was planned.

    Attributes:
        rendezvous: Where its workers meet.
        compiled: What each function that trains it computes here.
        push: Pushes, and returns the outcome; while it computes on, that of the push before.
        age: Of the parameters that this worker has.
        is_closed: Whether this worker has left it.
    """

    def __init__(
        self,
        plan: ModelPlan,
        client: ServerClient,
        overlaps: bool,
        workers: ServerWorkers,
        state: TrainState,
    ) -> None:
        self.plan = plan
        self.client = client
        self.rendezvous = Rendezvous(client)
        self.is_chief = workers.is_chief
        self._workers = workers
        self.in_step = isinstance(plan.options.rule, Sync)
        self.form: TrainState = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
        self.compiled: dict[Step, Callable[..., Any]] = {}
        self._source = state.recipe.tables
        self._tables: dict[LooksUpRows, ServedRows] = {}
        self._closing: list[Callable[[], object]] = []
        self.nothing: list[list[Any]] = [[] for _ in plan.parts]
        self.push = self._push_on if overlaps else self._push
        self._under_way: tuple[Callable[[], Outcome], RowsOfBatch | None] | None = None
        self._settled: Outcome | None = None
        self.age = Age()
        self.is_closed = False

    def tables_of(self, trainable: LooksUpRows) -> ServedRows:
        """The rows that the steps of a loss function need."""
        if trainable not in self._tables:
            source: ServerRows = self._source  # type: ignore[assignment]
            self._tables[trainable] = ServedRows(source, trainable)
        return self._tables[trainable]

    def _push(self, contribution: Contribution, following: RowsOfBatch | None) -> Outcome:
        """Push, and return the outcome; with it come the rows of a batch to follow."""
        return _with_rows(self.client.push(contribution), following)

    def _push_on(self, contribution: Contribution, following: RowsOfBatch | None) -> Outcome:
        """Begin to push, and return the outcome of the push before."""
        before = self._outcome_before()
        self._under_way = self.client.begin(contribution), following
        return before or Outcome("begun", contribution.base or 0)

    def _outcome_before(self) -> Outcome | None:
        """What came of the last push, unless that was returned before."""
        self.settle()
        before, self._settled = self._settled, None
        return before

    def settle(self) -> None:
        """Wait for the push that is under way, if there is one."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            result, following = under_way
            self._settled = _with_rows(result(), following)

    def caught_up(self, state: TrainState) -> TrainState:
        """The state with what came of the push that is under way."""
        before = self._outcome_before()
        return state if before is None else self.renewed(state, before)

    def renewed(self, state: TrainState, outcome: Outcome, others: Arrays | None = None) -> TrainState:
        """The state with what came back from the servers.

        Args:
            state: The state before.
            outcome: What came back.
            others: The non-trained state after this worker's step; as it was by default.
        """
        params, step = state.flat_params, state.step
        others = list(state.flat_state if others is None else others)
        if outcome.leaves is not None:
            params, others = self.plan.params_and_state(outcome.leaves, others)
            step = np.int32(outcome.step)
            self.age.begin()
        return TrainState(params, state.flat_opt_state, others, state.flat_ema, step, state.recipe)

    def freshened(self, state: TrainState) -> TrainState:
        """The state with parameters of now, if those that came with the last push have been waiting."""
        if not self.age.is_too_great():
            return state
        newer = self.client.pull_newer(int(state.step))
        self.age.begin()
        return state if newer is None else self.renewed(state, newer)

    def fetch(self, state: TrainState) -> TrainState:
        """All of it, at one step, from the servers."""
        self.settle()
        step, arrays = self.client.fetch()
        others = [np.array(each) for each in state.flat_state]
        return self.plan.join_state(arrays, others, step, state.recipe)

    def end_fit(self, fit: int) -> None:
        """Tell the other workers that this one has come to the end of a fit."""
        self.settle()
        self.rendezvous.end_fit(fit)

    def agreed(self, state: TrainState, label: Label) -> TrainState:
        """The state with the values that all workers look at under a label; not to be trained on."""
        self.settle()
        params, others = self.plan.params_and_state(self.rendezvous.agreed(label), list(state.flat_state))
        return replace(state, flat_params=params, flat_state=others)

    def _forget(self) -> None:
        """What has come so far is older than what there will be."""
        self.settle()
        self._settled = None
        for tables in self._tables.values():
            tables.forget()

    @property
    def has_pushed(self) -> bool:
        """See `Elsewhere`."""
        return self.client.has_pushed

    def renew(self, state: TrainState) -> TrainState:
        """See `Elsewhere`."""
        self._forget()
        return self.renewed(state, self.client.pull())

    def assign(
        self,
        state: TrainState,
        step: int | None = None,
        rows: NewRows = NO_ROWS,
    ) -> None:
        """See `Elsewhere`; state of a worker's own is not the servers' and is not looked at.

        Raises:
            StrategyError: This worker is not the chief.
        """
        if not self.is_chief:
            raise StrategyError(
                "only the chief may set values on the parameter servers: ask strategy.is_chief"
            )
        self._forget()
        self.client.assign(self.plan.scatter_state(state), step, rows)
        if step is not None:
            self.client.pull()

    def keep(
        self, root: str, make: Callable[[int], bool]
    ) -> tuple[int, Callable[[], tuple[list[ShardRecord], dict[str, TensorEntry]]] | None]:
        """See `Elsewhere`."""
        self.settle()
        step, are_writing = self.client.keep(root, make)
        return step, partial(self._kept, root, step) if are_writing else None

    def _kept(self, root: str, step: int) -> tuple[list[ShardRecord], dict[str, TensorEntry]]:
        records = self.client.kept(root, step)
        numbers = self.plan.shared(range(len(self.form.flat_state)))
        names = {f"state/{place}": f"state/{number}" for place, number in enumerate(numbers)}
        return records, {
            names.get(name, name): TensorEntry.joined([(records[server], key) for server, key in pieces])
            for name, pieces in self.plan.configs[0].tensors
        }

    def note(self, what: str, note: bytes) -> None:
        """See `Elsewhere`."""
        self.rendezvous.note(what, note)

    def noted(self, what: str) -> bytes | None:
        """See `Elsewhere`."""
        self.settle()
        return self.rendezvous.noted(what)

    def when_closing(self, callback: Callable[[], object]) -> None:
        """See `Elsewhere`."""
        if callback not in self._closing:
            self._closing.append(callback)

    def parting(self) -> Parting | None:
        """See `Elsewhere`."""
        return self._workers.parting()

    def close(self) -> None:
        """Wait for what is under way, and end."""
        self.is_closed = True
        while self._closing:
            self._closing.pop()()
        self.settle()
        self.client.close()
