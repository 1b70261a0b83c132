"""Which task of which cluster this process is, and who trains with it: what strategies of several processes ask."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from stratagem.cluster import ClusterConfig, ClusterSpec, resolve_cluster
from stratagem.errors import StrategyError
from stratagem.runtime.peers import task_name

ClusterLike: TypeAlias = ClusterSpec | Mapping[str, Sequence[str] | Mapping[int, str]]


def own_config(cluster: ClusterLike | None) -> ClusterConfig | None:
    """The task of this process, in the given cluster or the one that flags or the environment tell of.

    Raises:
        StrategyError: A cluster is given, but nothing tells which task of it this is.
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
    """The names of the tasks that train, the chief's first, in the same order everywhere.

    Raises:
        StrategyError: This process is none of them.
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
