"""`ParameterServerStrategy`: variables on servers, which any number of workers train, each at its own pace."""

from typing import Literal

from stratagem.cluster import ClusterConfig, ClusterSpec, how_to_start, resolve_cluster
from stratagem.cluster.roles import PS
from stratagem.engines.cluster_tasks import ALL_JOBS, ClusterLike, check_servers, serve, worker_tasks
from stratagem.engines.in_graph import InGraphWorkers, in_graph_parts, in_graph_rule
from stratagem.engines.local_engines import evaluator_parts, is_evaluator
from stratagem.engines.parameter_server_engine import worker_parts
from stratagem.engines.replicas import Replicas
from stratagem.errors import StrategyError
from stratagem.parameters.partition import Partitioner
from stratagem.parameters.protocol import check_rule, modules_of
from stratagem.parameters.rules import Async, UpdateRule
from stratagem.runtime import Session
from stratagem.runtime.peers import task_name
from stratagem.strategies.base import Strategy
from stratagem.waist import TrainState


class ParameterServerStrategy(Strategy):
    """Training by workers that push gradients to servers, which hold the variables and update them.

    The cluster comes from `cluster`, TF_CONFIG, flags or the launcher. In a process that is a `ps` task, the
    constructor serves, and raises `SystemExit(0)` when the job is done, or `WorkerLost` when every worker was lost. On an
    evaluator the strategy consists of this process alone, which evaluates and predicts and does not train.

    Args:
        cluster: The cluster, if it is not to be taken from flags or the environment, which then still tell
            which task this is.
        update: How pushes become updates: `Async()`, `Sync()`, `BoundedStaleness(steps)`, or an `UpdateRule` of your own.
        partitioner: Which server holds what: `RoundRobin()` (the default), `GreedyLoadBalancing()`; or `FixedShards`,
            `MinSizeShards`, `MaxSizeShards`, or a function of shape and dtype, which shard variables by rows.
        devices_per_worker: How many local devices each worker trains with, in step; all by default.
        replication: `between-graph`: every worker runs this script. `in-graph`: one client runs it (`stratagem run
            --single-client`, or a process outside of the cluster that is given `cluster`) and drives all workers, which
            do not run the user's script; `update` is `Sync()` or `Async()` then. Under `Async` a step does not wait for
            its batch, and looking at one of its metrics does.
        snapshot_dir: The directory of the servers' snapshots, from which a lost server comes back. `stratagem run`
            makes a directory for the run; with neither, there are no snapshots.
        snapshot_secs: Seconds from one snapshot to the next.
        rejoin_timeout: Seconds for which a lost worker or server may come back.
        tables_above: A `keras.layers.Embedding` of more bytes, made in the strategy's scope, is a table: its rows are
            trained one by one. `None`: none is.

    Example:
        >>> strategy = ParameterServerStrategy(update=Sync())
        >>> state = strategy.init(params, optax.adam(1e-3))
        >>> step = strategy.train_step(loss_fn)
        >>> for batch in strategy.distribute(batches):
        ...     state, metrics = step(state, batch)
        >>> strategy.close()
    """

    jobs = ALL_JOBS

    def __init__(
        self,
        cluster: ClusterLike | None = None,
        update: UpdateRule | None = None,
        partitioner: Partitioner | None = None,
        devices_per_worker: int | None = None,
        replication: Literal["between-graph", "in-graph"] = "between-graph",
        snapshot_dir: str | None = None,
        snapshot_secs: float = 60,
        rejoin_timeout: float = 60,
        tables_above: int | None = None,
    ) -> None:
        rule = Async() if update is None else update
        _check(rule, replication, snapshot_secs, rejoin_timeout, devices_per_worker)
        _check_tables_above(tables_above, replication)
        self.tables_above = tables_above
        own = resolve_cluster()
        if own is not None and is_evaluator(own):
            super().__init__(*evaluator_parts(own, Replicas.named(None)))
            return
        if replication == "in-graph":
            driven = in_graph_rule(rule, devices_per_worker, snapshot_dir)
            spec, task = self._client_of(cluster)
            super().__init__(*in_graph_parts(spec, task, driven, partitioner, rejoin_timeout))
            return
        config = self._needed_task(cluster)
        if config.job_name == PS:
            serve(config, modules_of(rule))
        super().__init__(
            *worker_parts(
                config, rule, partitioner, devices_per_worker, snapshot_dir, snapshot_secs, rejoin_timeout
            )
        )

    def _needed_task(self, cluster: ClusterLike | None) -> ClusterConfig:
        config = self._own_task(cluster)
        if config is None:
            raise StrategyError(
                "a ParameterServerStrategy needs a cluster, and neither flags (--job_name, --task_index, --ps_hosts, "
                f"--worker_hosts) nor TF_CONFIG tell of one: start it with {how_to_start(None, ps=1)}"
            )
        return config

    def _client_of(self, cluster: ClusterLike | None) -> tuple[ClusterSpec, str | None]:
        """Return the cluster and the task of the one client; serve if this process is another task."""
        if cluster is not None and resolve_cluster() is None:  # a client from outside of the cluster
            spec = ClusterSpec(cluster)
            check_servers(spec, None)
            return spec, None
        config = self._needed_task(cluster)
        if config.job_name == PS:
            serve(config)
        worker_tasks(config)  # raises for a task that does not train
        if not config.is_chief:
            serve(config)
        return config.cluster, task_name(config.job_name, config.task_index)

    def placement(self, state: TrainState) -> dict[str, str]:
        """Return the device of each variable, or of each of its shards, by name."""
        return {
            variable["name"]: variable["device"]
            for status in self.status().values()
            for model in status.get("parameters", {}).values()
            for variable in model["variables"]
        }

    @property
    def session(self) -> Session:
        """The session with which a single client drives the workers.

        Raises:
            StrategyError: There is no single client.
        """
        if not isinstance(self._workers, InGraphWorkers):
            raise StrategyError(
                "only with replication='in-graph' does one client drive the workers; here each runs this script"
            )
        return self._workers.pool.session


def _check(
    rule: object, replication: str, snapshot_secs: float, rejoin_timeout: float, devices: int | None
) -> None:
    check_rule(rule)
    if replication not in ("between-graph", "in-graph"):
        raise StrategyError(f"replication is {replication!r}; it can be 'between-graph' or 'in-graph'")
    for name, value in {"snapshot_secs": snapshot_secs, "rejoin_timeout": rejoin_timeout}.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise StrategyError(f"{name} is {value!r}; give a number of seconds above 0")
    if devices is not None and (not isinstance(devices, int) or devices < 1):
        raise StrategyError(f"devices_per_worker is {devices!r}; give a whole number of at least 1, or None")


def _check_tables_above(tables_above: object, replication: str) -> None:
    if tables_above is None:
        return
    if not isinstance(tables_above, int) or isinstance(tables_above, bool) or tables_above < 0:
        raise StrategyError(
            f"tables_above is {tables_above!r}; give a number of bytes of at least 0, or None"
        )
    if replication == "in-graph":
        raise StrategyError(
            "tables_above was given with replication='in-graph', which trains no tables: use between-graph"
        )
