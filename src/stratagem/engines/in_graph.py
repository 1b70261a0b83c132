"""In-graph replication: one client drives all workers and parameter servers of a cluster, which run no code of their own."""

import contextlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import jax

from stratagem.cluster import ClusterSpec, how_to_start, resolve_cluster
from stratagem.engines.cluster_tasks import platforms_of
from stratagem.engines.engine import Engine, Step
from stratagem.engines.feeds import Batches, Deal, Feed, nonempty
from stratagem.engines.in_graph_model import InGraphModel
from stratagem.engines.replicas import Replicas
from stratagem.engines.rows import count_rows, share_of, take_rows
from stratagem.engines.server_steps import StepLog
from stratagem.engines.worker_pool import BackgroundCall, PendingNumber, WorkerPool
from stratagem.engines.workers import Array, Workers
from stratagem.errors import StratagemError, StrategyError, TaskLost, TaskUnreachable
from stratagem.parameters.partition import Partitioner
from stratagem.parameters.planning import JobOptions, ModelPlan
from stratagem.parameters.rules import UpdateRule
from stratagem.runtime import Session
from stratagem.runtime.exits import at_normal_exit
from stratagem.runtime.peers import task_name
from stratagem.runtime.wire.error_translation import first_line
from stratagem.waist import Metrics, Trainable, TrainState

_START_SECONDS = 600.0
_FAREWELL_SECONDS = 1.0
_MOST_FAREWELLS = 32


def in_graph_rule(rule: UpdateRule, devices_per_worker: int | None, snapshot_dir: str | None) -> UpdateRule:
    """Return the update rule, if one client can do all that it is asked for.

    Raises:
        StrategyError: It cannot.
    """
    if not rule.works_in_graph:
        raise StrategyError(
            f"update is {rule!r}; with replication='in-graph' one client drives all workers alike: give sg.Sync() or "
            "sg.Async(), or use replication='between-graph'"
        )
    if devices_per_worker not in (None, 1):
        raise StrategyError(
            f"devices_per_worker is {devices_per_worker}; with replication='in-graph' a worker computes on one device: "
            "start a worker for each device, or use replication='between-graph'"
        )
    if snapshot_dir is not None:
        raise StrategyError(
            f"snapshot_dir is {snapshot_dir!r}; with replication='in-graph' the servers keep no snapshots: save with "
            "sg.Checkpointer, from the client"
        )
    return rule


def in_graph_parts(
    cluster: ClusterSpec,
    own_task: str | None,
    rule: UpdateRule,
    partitioner: Partitioner | None,
    rejoin_timeout: float,
) -> tuple[Engine, Workers, Feed, int]:
    """Return what the strategy of the one client consists of: engine, workers, feed, and the workers in each update.

    Args:
        cluster: The cluster.
        own_task: The task of this process, if it is one of the cluster.
        rule: How gradients become updates.
        partitioner: Which server holds what.
        rejoin_timeout: Seconds to wait for a worker when all are lost.
    """
    client = InGraphWorkers(cluster, own_task, rejoin_timeout)
    engine = InGraphEngine(client, rule, partitioner, rejoin_timeout)
    in_sync = rule.pushes_per_update(len(client.pool.tasks))
    return engine, client, InGraphFeed(takes_turns=not rule.averages_pushes), in_sync


class InGraphWorkers(Workers):
    """The one process that runs the user's code, as a strategy sees it; it is the chief.

    Attributes:
        pool: The workers that it drives.
    """

    index = 0
    count = 1
    is_chief = True
    files = None

    def __init__(self, cluster: ClusterSpec, own_task: str | None, rejoin_timeout: float) -> None:
        indices = cluster.task_indices("worker") if "worker" in cluster.jobs else []
        workers = [task_name("worker", index) for index in indices]
        tasks = [task for task in workers if task != own_task]
        if not tasks:
            raise StrategyError(
                "there is no worker beside this client: start it with "
                f"{how_to_start(resolve_cluster(), ps=1, workers=2, single_client=True)}"
            )
        self.cluster = cluster
        target = f"sg://{cluster.task_address('ps', cluster.task_indices('ps')[0])}"
        session = Session(target, timeout=_START_SECONDS)
        self.pool = WorkerPool(session, tasks, rejoin_timeout)
        self._own_task = own_task
        self._models: list[InGraphModel] = []
        self._forget_exit = at_normal_exit(self.close)

    def use(self, model: InGraphModel) -> None:
        """Have a model closed with this process."""
        self._models.append(model)

    def status(self) -> dict[str, Any]:
        return self.pool.session.status()

    def gather(self, array: Array) -> Sequence[Array]:
        """Refuse: replicas are on the workers, which run only what is shipped to them.

        Raises:
            StrategyError: Always.
        """
        raise StrategyError(
            "with replication='in-graph' strategy.run, reduce and gather have no replicas in this process: train with "
            "train_step, or have workers run functions with sg.ClusterCoordinator(strategy)"
        )

    def close(self) -> None:
        """End the job: tell all tasks that all workers have finished. Also called when this process ends well."""
        self._forget_exit()
        models, self._models = self._models, []
        session = self.pool.session
        try:
            for model in models:
                model.close()
            self._announce_end()
        finally:
            self.pool.close()
            session.close()

    def _announce_end(self) -> None:
        peers = self.pool.session.peers
        finished = [task for task in peers.tasks if task.startswith(("/job:worker/", "/job:chief/"))]

        def tell(task: str) -> None:
            with contextlib.suppress(StratagemError):  # it is gone already
                for each in finished:
                    peers[task].call("finished", {"task": each}, timeout=_FAREWELL_SECONDS, wait=False)

        others = [task for task in peers.tasks if task != self._own_task]
        with ThreadPoolExecutor(_MOST_FAREWELLS) as threads:
            list(threads.map(tell, others))


class InGraphFeed(Feed):
    """Gives a single client all batches whole; each step deals its batch out among the workers."""

    shares_evaluation = False

    def __init__(self, takes_turns: bool) -> None:
        self.takes_turns = takes_turns

    def share(self, batches: Iterable[Any]) -> Batches:
        return Batches(lambda: nonempty(batches))

    def own(self, batches: Iterable[Any]) -> Batches:
        return self.share(batches)

    def deal(self) -> Deal:
        return lambda batch: batch

    def rest(self) -> None:
        """Do nothing: no other process waits for this one."""


class InGraphEngine(Engine):
    """Variables on the parameter servers, gradients on the workers, and one client that drives both."""

    is_elsewhere = True

    def __init__(
        self,
        workers: InGraphWorkers,
        rule: UpdateRule,
        partitioner: Partitioner | None,
        rejoin_timeout: float,
    ) -> None:
        cluster = workers.pool.session.cluster
        servers = tuple(task_name("ps", index) for index in cluster.task_indices("ps"))
        super().__init__(Replicas([jax.devices("cpu")[0]]))
        self._workers = workers
        self._rule = rule
        peers = workers.pool.session.peers
        platforms_of(peers, workers.pool.tasks, _START_SECONDS)  # waits until all workers are up
        self._options = JobOptions(
            servers=servers,
            workers=tuple(workers.pool.tasks),
            platforms=platforms_of(peers, servers, _START_SECONDS),
            rule=rule.for_workers(len(workers.pool.tasks)),
            partitioner=partitioner,
            snapshot_dir=None,
            snapshot_secs=60,
            rejoin_timeout=rejoin_timeout,
        )
        self._models = 0

    def lay_out(self, state: TrainState) -> TrainState:
        """Bring a state to the servers; the result reads its parameters from there."""
        if "sum" in state.kinds:
            raise StrategyError(
                "this model keeps running sums, as Keras models do for their metrics, of which each worker would make its "
                "own: train it with replication='between-graph'"
            )
        name = f"model-{self._models}"
        self._models += 1
        plan = ModelPlan(name, state, state.recipe.names, self._options)
        model = InGraphModel(name, self._workers.pool, plan, state, self._rule.averages_pushes)
        self._workers.use(model)
        return model.renew(state.at_home(model))

    def build(self, trainable: Trainable) -> Step:
        step = self._in_step(trainable) if self._rule.averages_pushes else self._in_turn(trainable)

        def guarded(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            try:
                return step(state, batch)
            except (TaskLost, TaskUnreachable) as error:
                raise self._explained(error) from None

        return guarded

    def _explained(self, error: TaskLost | TaskUnreachable) -> Exception:
        """Return the error to raise: one that explains the loss of a server, if that is what it was."""
        if error.task not in self._options.servers:
            return error
        return TaskLost(
            f"{error.task} is lost, and the variables that it held with it; in-graph replication has no snapshots. Start the job "
            "again and go on from a checkpoint: save with sg.Checkpointer, restore before the loop. "
            f"What was seen: {first_line(error)}"
        )

    def _in_step(self, trainable: Trainable) -> Step:
        """Give every worker a share of the batch, and make one update; a worker without a row computes nothing."""
        count = len(self._workers.pool.tasks)
        log = StepLog()

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            model = cast(InGraphModel, state.recipe.home)
            rows = count_rows(batch)
            slices = [(number, share_of(rows, number, count)) for number in range(count)]
            shares = [
                (number, own.stop - own.start, take_rows(batch, own))
                for number, own in slices
                if own.stop > own.start
            ]
            metrics = model.train(trainable, shares, state.recipe.seed, model.step)
            log.count(rows, model.step, metrics)
            return model.renew(state), metrics

        return step

    def _in_turn(self, trainable: Trainable) -> Step:
        """Give batch i whole to worker i mod W; the next step waits for it only if it is for the same worker."""
        log = StepLog()
        names: list[str] = []

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            model = cast(InGraphModel, state.recipe.home)
            rows = count_rows(batch)
            call = model.begin(trainable, rows, batch, state.recipe.seed)
            if not names:
                names.extend(call.result())
            metrics: Metrics = {name: _pending(call, name) for name in names}
            log.count(rows, model.step, metrics)
            return model.renew(state), metrics

        return step


def _pending(call: BackgroundCall[Metrics], name: str) -> PendingNumber:
    return PendingNumber(lambda: call.result()[name])
