"""The tasks of a cluster, as strategies use them: which one this process is, which train, which jobs are missing or idle."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn, TypeAlias

from stratagem.cluster import ClusterConfig, ClusterSpec, how_to_start, resolve_cluster
from stratagem.cluster.roles import CHIEF, PS, WORKER
from stratagem.devices import share_host
from stratagem.errors import StrategyError
from stratagem.runtime import Server
from stratagem.runtime.peers import Peers, task_name

ClusterLike: TypeAlias = ClusterSpec | Mapping[str, Sequence[str] | Mapping[int, str]]


def own_config(cluster: ClusterLike | None) -> ClusterConfig | None:
    """Return the task of this process, in a given cluster or in the one that flags or the environment describe.

    Raises:
        StrategyError: A cluster is given, but nothing says which of its tasks this is.
    """
    config = resolve_cluster()
    if cluster is None:
        return config
    if config is None:
        raise StrategyError(
            "a cluster was given, but neither flags (--job_name, --task_index) nor TF_CONFIG tell which task of it this is"
        )
    return ClusterConfig(ClusterSpec(cluster), config.job_name, config.task_index, config.source)


def worker_tasks(config: ClusterConfig) -> list[str]:
    """Return the names of the tasks that train, the chief's first, in the same order everywhere.

    Raises:
        StrategyError: This process does not train.
    """
    tasks = [
        task_name(job, index)
        for job in ("chief", "worker")
        if job in config.cluster.jobs
        for index in config.cluster.task_indices(job)
    ]
    own = task_name(config.job_name, config.task_index)
    if own not in tasks:
        raise StrategyError(f"{own} does not train: this strategy is for {', '.join(tasks)}")
    return tasks


def serve(config: ClusterConfig, allowed_imports: Sequence[str] = ()) -> NoReturn:
    """Serve until the job is done, and end the process. The server may import these modules, for the script's own rule."""
    share_host(config)
    with Server(
        config.cluster, config.job_name, config.task_index, allowed_imports=allowed_imports
    ) as server:
        server.join()
    raise SystemExit(0)


def platforms_of(peers: Peers, tasks: Sequence[str], timeout: float) -> tuple[str, ...]:
    """Return the platform that programs for each task are exported for, once the task is up."""
    platforms = []
    for task in tasks:
        peers[task].call("ping", timeout=timeout)
        platforms.append(str(peers[task].info["platform"]))
    return tuple(platforms)


# Whether a strategy and its cluster fit.

NO_JOBS: frozenset[str] = frozenset()
"""The jobs of strategies that train in one process by itself."""
WORKER_JOBS = frozenset({CHIEF, WORKER})
ALL_JOBS = WORKER_JOBS | {PS}

_log = logging.getLogger("stratagem")
_settled: set[str] = set()
"""Jobs that a strategy of this process uses, or that a warning has named."""


def check_servers(cluster: ClusterSpec, config: ClusterConfig | None) -> None:
    """Refuse a cluster without parameter servers.

    Args:
        cluster: The cluster.
        config: What this process was started with, for the advice.

    Raises:
        StrategyError: There are no parameter servers.
    """
    if PS not in cluster.jobs:
        raise StrategyError(
            f"the cluster has no ps task, only {', '.join(cluster.jobs)}: start it with {how_to_start(config, ps=1)}; or use "
            "MultiWorkerMirroredStrategy, which needs none"
        )


def check_jobs(strategy: str, uses: Collection[str], config: ClusterConfig) -> None:
    """Refuse a cluster that lacks jobs that a strategy uses, and warn of jobs that it leaves idle.

    Only the chief warns, and once of each job: a script that has made a strategy of all tasks may well make another
    for itself.

    Args:
        strategy: The name of the strategy.
        uses: `NO_JOBS`, `WORKER_JOBS` or `ALL_JOBS`.
        config: The cluster, and which of its tasks this is.

    Raises:
        StrategyError: It needs parameter servers, and there are none.
    """
    if PS in uses:
        check_servers(config.cluster, config)
    if config.is_chief:
        for job in sorted(ALL_JOBS - {*uses, *_settled}):
            _warn(strategy, job, config)
    _settled.update(uses)


def _warn(strategy: str, job: str, config: ClusterConfig) -> None:
    cluster = config.cluster
    training = sum(cluster.num_tasks(each) for each in WORKER_JOBS if each in cluster.jobs)
    if job == PS and PS in cluster.jobs:
        count = cluster.num_tasks(PS)
        _log.warning(
            "%s uses no parameter servers: %s of the cluster (%s) will do nothing. Use ParameterServerStrategy, or leave "
            "them out: start it with %s",
            strategy,
            f"{count} ps task{'s' if count > 1 else ''}",
            config.source,
            how_to_start(config),
        )
    elif job == WORKER and training > 1:
        _log.warning(
            "%s trains in one process alone, and the cluster (%s) has %d tasks that train: each that runs this script trains a "
            "model of its own, and none learns from another. To train one model use MultiWorkerMirroredStrategy, or "
            "ParameterServerStrategy with ps tasks; to train alone, start it with %s",
            strategy,
            config.source,
            training,
            how_to_start(config, workers=1),
        )
    else:
        return
    _settled.add(job)
