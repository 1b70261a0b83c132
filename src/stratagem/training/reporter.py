"""Which process of a job reports for all: the same script runs on every worker, and only one should print and write."""

from typing import Protocol

from stratagem.cluster import resolve_cluster
from stratagem.cluster.roles import EVALUATOR


class HasChief(Protocol):
    """The part of a strategy that says who reports."""

    @property
    def is_chief(self) -> bool: ...


def is_reporter(strategy: HasChief | None = None) -> bool:
    """Return whether this process reports: the chief, a process without a cluster, or the evaluator.

    The evaluator has results of its own to report.

    Args:
        strategy: Says who is chief, except on the evaluator. By default, flags and the environment say which task this
            is.
    """
    config = resolve_cluster()
    if config is not None and config.job_name == EVALUATOR:
        return True
    if strategy is not None:
        return strategy.is_chief
    return config is None or config.is_chief


def task_label() -> str | None:
    """Return this task's name as it appears in file names, such as `worker-1`; `None` without a cluster."""
    config = resolve_cluster()
    return None if config is None else f"{config.job_name}-{config.task_index}"


def has_other_workers() -> bool:
    """Return whether flags or the environment name other tasks that train too."""
    config = resolve_cluster()
    if config is None:
        return False
    return sum(config.cluster.num_tasks(job) for job in config.cluster.jobs if job in ("chief", "worker")) > 1
