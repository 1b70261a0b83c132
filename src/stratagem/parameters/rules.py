"""The three ways in which pushed gradients become updates, as a user names them."""

from dataclasses import dataclass
from typing import TypeAlias

from stratagem.errors import StrategyError


@dataclass(frozen=True)
class Async:
    """Every push is applied when it arrives, by itself.

    Args:
        overlap: Whether a worker computes its next gradients, on the newest parameters that it has, while its last
            push is still being applied (at most one is under way). That makes every push one update staler than it
            would be otherwise; without it, one worker alone trains exactly as plain training does.
    """

    overlap: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.overlap, bool):
            raise StrategyError(f"Async(overlap={self.overlap!r}): give True or False")


@dataclass(frozen=True)
class Sync:
    """So many pushes are averaged into each update, by examples.

    Args:
        replicas_to_aggregate: How many pushes make an update; one of every worker by default.
        total_num_replicas: How many workers push; all by default. If more than `replicas_to_aggregate`, the rest
            are backup workers: an update does not wait for the slowest, whose gradients, then stale, are dropped
            and counted. If fewer, workers push several batches for each update.

    Example:
        >>> Sync(replicas_to_aggregate=3, total_num_replicas=4)  # one backup worker
        Sync(replicas_to_aggregate=3, total_num_replicas=4)
    """

    replicas_to_aggregate: int | None = None
    total_num_replicas: int | None = None

    def __post_init__(self) -> None:
        for name in ("replicas_to_aggregate", "total_num_replicas"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise StrategyError(f"Sync({name}={value!r}): give a whole number of at least 1, or None")

    def for_workers(self, workers: int) -> "Sync":
        """The same with both numbers told, for so many workers.

        Raises:
            StrategyError: `total_num_replicas` is not their number.
        """
        total = workers if self.total_num_replicas is None else self.total_num_replicas
        if total != workers:
            raise StrategyError(
                f"Sync(total_num_replicas={total}): the cluster has {workers} workers; leave it out, or give {workers}"
            )
        return Sync(total if self.replicas_to_aggregate is None else self.replicas_to_aggregate, total)

    def shares_batches(self, workers: int) -> bool:
        """Whether every update takes one push of every worker, so that each may compute a share of one batch."""
        rule = self.for_workers(workers)
        return rule.replicas_to_aggregate == rule.total_num_replicas


@dataclass(frozen=True)
class BoundedStaleness:
    """Every push is applied when it arrives, but a worker more than `steps` pushes ahead of the slowest waits.

    Args:
        steps: How far ahead a worker may be; with 0 all go in step.
    """

    steps: int

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or isinstance(self.steps, bool) or self.steps < 0:
            raise StrategyError(f"BoundedStaleness(steps={self.steps!r}): give a whole number of at least 0")


UpdateRule: TypeAlias = Async | Sync | BoundedStaleness
