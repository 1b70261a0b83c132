"""Whether a strategy and its cluster fit: which of the cluster's jobs it uses, lacks, or leaves idle."""

import logging
from collections.abc import Collection

from stratagem.cluster import ClusterConfig, ClusterSpec, how_to_start
from stratagem.cluster.roles import CHIEF, PS, WORKER
from stratagem.errors import StrategyError

ALONE: frozenset[str] = frozenset()
"""A process trains by itself, whoever else is there."""
IN_STEP = frozenset({CHIEF, WORKER})
SERVED = IN_STEP | {PS}

_log = logging.getLogger("stratagem")
_settled: set[str] = set()
"""Jobs that a strategy of this process uses, or that a warning has told of."""


def check_servers(cluster: ClusterSpec, config: ClusterConfig | None) -> None:
    """Refuse a cluster without parameter servers.

    Args:
        cluster: The cluster.
        config: What this process was started in, for the advice.
    """
    if PS not in cluster.jobs:
        raise StrategyError(
            f"the cluster has no ps task, only {', '.join(cluster.jobs)}: start it with {how_to_start(config, ps=1)}; or use "
            "MultiWorkerMirroredStrategy, which needs none"
        )


def check_jobs(strategy: str, uses: Collection[str], config: ClusterConfig) -> None:
    """Refuse a cluster that lacks what a strategy uses, and warn of tasks that it leaves to themselves.

    Only the chief warns, and once of each job: a script that has made a strategy of all tasks may well make another
    for itself.

    Args:
        strategy: What it is called.
        uses: `ALONE`, `IN_STEP` or `SERVED`.
        config: The cluster, and which task of it this is.

    Raises:
        StrategyError: It needs parameter servers, and there are none.
    """
    if PS in uses:
        check_servers(config.cluster, config)
    if config.is_chief:
        for job in sorted({*IN_STEP, PS} - {*uses, *_settled}):
            _warn(strategy, job, config)
    _settled.update(uses)


def _warn(strategy: str, job: str, config: ClusterConfig) -> None:
    cluster = config.cluster
    training = sum(cluster.num_tasks(each) for each in IN_STEP if each in cluster.jobs)
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
