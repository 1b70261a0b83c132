"""How gradients become updates on parameter servers: computed here, pushed there, new parameters brought back."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import jax
import numpy as np

from stratagem import environment
from stratagem.cluster import ClusterConfig
from stratagem.cluster.roles import PS
from stratagem.devices import share_host
from stratagem.engines.cluster_tasks import platforms_of, worker_tasks
from stratagem.engines.engine import Engine, Step
from stratagem.engines.feeds import Feed
from stratagem.engines.local_tables import place_rows
from stratagem.engines.replicas import Lookahead, Replicas
from stratagem.engines.row_prefetch import RowPrefetcher
from stratagem.engines.rows import count_rows
from stratagem.engines.server_model import ServerModel
from stratagem.engines.server_steps import StepLog, server_gradients, worker_key
from stratagem.engines.server_workers import ServerFeed, ServerWorkers
from stratagem.engines.table_trainables import ROW_GRADIENTS, TableTrainable
from stratagem.engines.workers import Workers
from stratagem.errors import TaskReplaced, TaskUnreachable
from stratagem.parameters.partition import Partitioner
from stratagem.parameters.planning import JobOptions, ModelPlan, Pieces
from stratagem.parameters.push import Contribution, TrainingClient
from stratagem.parameters.rules import UpdateRule
from stratagem.parameters.served_tables import ServerRows
from stratagem.runtime import Server
from stratagem.runtime.peers import task_name
from stratagem.runtime.stderr import report_briefly
from stratagem.tables.row_source import RowSource
from stratagem.tables.table import Table
from stratagem.waist import Arrays, Metrics, Trainable, TrainState

_START_SECONDS = 600.0
"""How long a worker waits for servers that have not been started; meanwhile the log names them."""


def worker_parts(
    config: ClusterConfig,
    rule: UpdateRule,
    partitioner: Partitioner | None,
    devices_per_worker: int | None,
    snapshot_dir: str | None,
    snapshot_secs: float,
    rejoin_timeout: float,
) -> tuple[Engine, Workers, Feed, int | None]:
    """Return what the strategy of a worker consists of: engine, workers, feed, and the pushes in each update."""
    report_briefly(TaskReplaced)
    workers = worker_tasks(config)
    rule = rule.for_workers(len(workers))
    share_host(config)
    server = Server(config.cluster, config.job_name, config.task_index, announce_devices=False)
    servers = tuple(task_name(PS, index) for index in config.cluster.task_indices(PS))
    # A worker that was started again had servers before: they come back soon, or the job is over.
    timeout = _START_SECONDS if environment.generation() == 0 else rejoin_timeout
    try:
        platforms = platforms_of(server.peers, servers, timeout)
    except TaskUnreachable as error:
        raise TaskUnreachable(f"{error} Or the job is over, and its servers have ended") from None
    replicas = Replicas.first(devices_per_worker)
    server.announce_devices()
    options = JobOptions(
        servers=servers,
        workers=tuple(workers),
        platforms=platforms,
        rule=rule,
        partitioner=partitioner,
        snapshot_dir=snapshot_dir or environment.snapshot_dir(),
        snapshot_secs=snapshot_secs,
        rejoin_timeout=rejoin_timeout,
    )
    group = ServerWorkers(server, workers, config.is_chief, rule)
    engine = ParameterServerEngine(replicas, group, options)
    aggregated = rule.pushes_per_update(len(workers))
    return engine, group, ServerFeed(replicas, group), aggregated


class ParameterServerEngine(Engine):
    """Variables on the parameter servers; every worker computes, with its devices in step."""

    is_elsewhere = True

    def __init__(self, replicas: Replicas, workers: ServerWorkers, options: JobOptions) -> None:
        super().__init__(replicas)
        self._workers = workers
        self._options = options
        self._models = 0

    def tables(self, tables: Sequence[Table], optimizer: Any) -> RowSource:
        # While a push is under way the rows of the next step cannot be asked for: they come with the push before.
        self.replicas.lookahead = Lookahead(2 if self._options.rule.overlaps else 1)
        return ServerRows(tables, optimizer)

    def lay_out(self, state: TrainState) -> TrainState:
        """Bring a state to the servers, or join the workers that have; the result has parameters only."""
        plan = ModelPlan(f"model-{self._models}", state, state.recipe.names, self._options)
        self._models += 1
        workers = self._workers
        client = TrainingClient(
            workers.server, workers.index, workers.is_chief, plan, lambda: plan.initial(state)
        )
        client.connect()
        notice = workers.preemption_notice()
        model = ServerModel(plan, client, self._options.rule.overlaps, workers.is_chief, notice, state)
        if isinstance(state.recipe.tables, ServerRows):
            state.recipe.tables.client, state.recipe.tables.settle = client, model.settle
        workers.use(model)
        recipe = replace(state.recipe, home=model)
        empty = TrainState([], [], list(state.flat_state), None, np.int32(0), recipe)
        return model.with_outcome(empty, client.pull())

    def build(self, trainable: Trainable) -> Step:
        return _ServerStep(trainable, self.replicas, self._workers.index, self._options)


@dataclass
class _Results:
    """What a worker has computed of a batch.

    Attributes:
        others: The new non-trained state.
        metrics: The metrics of this worker's rows.
        gradients: For each server, the gradients of its pieces.
        commons: What the gradients of all leaves have in common.
        tables: For each server, ids and gradients of rows.
    """

    others: Arrays
    gradients: Pieces
    metrics: Metrics = field(default_factory=dict)
    commons: Arrays = field(default_factory=list)
    tables: Pieces | None = None


class _ServerStep:
    """Computes gradients, pushes them, and takes what comes back."""

    def __init__(self, trainable: Trainable, replicas: Replicas, index: int, options: JobOptions) -> None:
        self._trainable = trainable
        self._replicas = replicas
        self._index = index
        self._averages = options.rule.averages_pushes
        self._renews = not self._averages and not options.rule.overlaps
        # A single CPU device reads arrays of the host in place.
        self._on_devices = _unchanged if replicas.read_host_memory else replicas.replicate
        self._on_host = np.asarray if len(replicas) == 1 else _first_copy
        self._log = StepLog()

    def __call__(self, state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        model = cast(ServerModel, state.recipe.home)
        rows = count_rows(batch, default=0)
        prefetcher = following = None
        if isinstance(self._trainable, TableTrainable):
            lookahead = cast(Lookahead, self._replicas.lookahead)  # which `tables` has set
            prefetcher = model.prefetcher(self._trainable, lookahead.distance)
            if not prefetcher.has_rows(batch):
                state = model.after_push(state)
            following = prefetcher.following(state.flat_params, lookahead.after(batch))
        if rows:
            state, results = self._compute(model, state, batch, prefetcher)
        else:
            results = _Results(state.flat_state, [[] for _ in model.plan.parts])
        metrics = results.metrics
        averages = self._averages
        contribution = Contribution(
            rows,
            results.gradients,
            [self._on_host(common) for common in results.commons],
            {name: self._on_host(value).tolist() for name, value in metrics.items()} if averages else {},
            int(state.step),
            results.tables,
            None if following is None else following.ids(),
        )
        outcome = model.push(contribution, following)
        if averages and outcome.metrics:
            metrics = {
                name: np.asarray(value) if isinstance(value, list) else value
                for name, value in outcome.metrics.items()
            }
        self._log.count(rows, outcome.update, metrics)
        client = model.client
        report = {**metrics, "global_step": outcome.update, "dropped": client.dropped}
        report["lost_updates"] = client.lost_updates
        if outcome.staleness is not None:
            report["staleness"] = outcome.staleness
        return model.with_outcome(state, outcome, results.others), report

    def _compute(
        self, model: ServerModel, state: TrainState, batch: Any, prefetcher: RowPrefetcher | None
    ) -> tuple[TrainState, _Results]:
        compiled = model.compiled.get(self)
        if compiled is None:
            program = partial(_gradients, self._trainable, model.plan, self._index, not self._averages)
            compiled = model.compiled[self] = jax.jit(program, out_shardings=self._replicas.whole)
        needed = None
        for is_last in (not self._renews, True):
            before = state
            if self._renews:
                state = model.with_fresh_params(state)
            inputs = batch
            if prefetcher is not None:
                if needed is None or state is not before:
                    key = partial(worker_key, state.recipe.seed, np.int32(state.step), self._index)
                    needed = prefetcher.needed(state.flat_params, batch, key)
                if needed.values is None or state is not before:
                    prefetcher.pull(needed)
                inputs = place_rows(self._replicas, batch, needed.values or [], needed.needed.places)
            grads, others, metrics, commons = compiled(
                self._on_devices(state.flat_params),
                self._on_devices(state.flat_state),
                np.int32(state.step),
                state.recipe.seed,
                inputs,
            )
            gradients = model.plan.scatter([self._on_host(grad) for grad in grads])
            # A computation that was compiled, or stood still, is repeated once, on the present parameters.
            if model.age.was_as_ever() or is_last:
                break
        tables = None
        if needed is not None:
            tables = needed.gradients([self._on_host(each) for each in metrics.pop(ROW_GRADIENTS)])
        return state, _Results(others, gradients, metrics, commons, tables)


def _gradients(
    trainable: Trainable,
    plan: ModelPlan,
    index: int,
    alone: bool,
    params: Arrays,
    others: Arrays,
    step: Any,
    seed: Any,
    batch: Any,
) -> tuple[Arrays, Arrays, Metrics, Arrays]:
    """Return `server_gradients` of one worker's step; to be compiled."""
    rng = worker_key(seed, step, index)
    return server_gradients(trainable, plan, params, others, batch, rng, alone)


def _unchanged(arrays: Arrays) -> Arrays:
    return arrays


def _first_copy(array: Any) -> Any:
    """Return one of the copies of an array that is on every device, on the host."""
    return np.asarray(array if array.is_fully_replicated else array.addressable_data(0))
