"""Which process of a job speaks for all: one script runs on every worker, and only one of them shall be heard."""

from typing import Protocol

from stratagem.cluster import resolve_cluster
from stratagem.cluster.roles import EVALUATOR


class HasChief(Protocol):
    """What a strategy tells of itself here."""

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes checkpoints, logs and progress."""
        ...


def speaks(strategy: HasChief | None = None) -> bool:
    """Whether this process is to be heard: the chief, a process without a cluster, and the evaluator.

    The evaluator is one of its kind and has something of its own to tell.

    Args:
        strategy: Asked if it is given, but on the evaluator; else flags and the environment tell which task this is.
    """
    config = resolve_cluster()
    if config is not None and config.job_name == EVALUATOR:
        return True
    if strategy is not None:
        return strategy.is_chief
    return config is None or config.is_chief


def own_label() -> str | None:
    """This task's name as it stands in file names, such as `worker-1`; `None` without a cluster."""
    config = resolve_cluster()
    return None if config is None else f"{config.job_name}-{config.task_index}"


def trains_with_others() -> bool:
    """Whether flags or the environment tell of other tasks that train too."""
    config = resolve_cluster()
    if config is None:
        return False
    return sum(config.cluster.num_tasks(job) for job in config.cluster.jobs if job in ("chief", "worker")) > 1
