"""What a simulation found out."""

from dataclasses import dataclass

WORKER_COMPUTE, WORKER_LINK, SERVER_LINK, SERVER_UPDATE = (
    "worker compute",
    "worker link",
    "server link",
    "server update",
)


@dataclass(frozen=True)
class Simulated:
    """The steady pace of one job, without failures.

    Attributes:
        updates_per_second: Global steps.
        gradients_per_second: Pushes that became part of an update.
        mean_staleness: Updates between the parameters that a gradient was computed on and its own.
        p99_staleness: What 99 % of gradients do not exceed.
        dropped: The share of pushes that were dropped.
        waiting: The share of a worker's time in which it waits for other workers.
        round_trip: Seconds from the beginning of a push to the parameters that come back, on average.
        busy: For each resource, the share of time that it is at work.
        half_width: Of the 95 % confidence interval of the pace, relative to it.
        pushes: How many were simulated.
    """

    updates_per_second: float
    gradients_per_second: float
    mean_staleness: float
    p99_staleness: int
    dropped: float
    waiting: float
    round_trip: float
    busy: dict[str, float]
    half_width: float
    pushes: int

    @property
    def busiest(self) -> str:
        """The resource that is at work most of the time."""
        return max(self.busy, key=lambda name: self.busy[name])
