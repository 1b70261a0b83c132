"""What is known of a job and of the machines that it is to run on."""

import math
from dataclasses import dataclass, field

from stratagem.errors import LaunchError
from stratagem.tools.planning.failures import Failures
from stratagem.tools.planning.stragglers import Stragglers


@dataclass(frozen=True)
class Figures:
    """One job on one kind of machine. Times are seconds.

    Attributes:
        step_time: A worker's computing of one gradient, on average.
        model_bytes: What a push carries, and what comes back.
        bandwidth: Bytes per second of one host's link, each way at once.
        latency: From one host to another.
        update_per_byte: A server's time for an update, per byte of what it holds.
        average_per_byte: A server's time to add one more gradient to an average, per byte.
        request_time: A server's own time for each request, whatever its size.
        worker_overhead: A worker's own time around each push, which is neither computing nor sending.
        stragglers: How the time of a step varies.
        failures: What is lost, how often.
        batch: Examples of one gradient, if they are to be counted.
        collective: How an all-reduce goes: `ring`, or `tree` (as NCCL does for many hosts).
    """

    step_time: float
    model_bytes: float
    bandwidth: float = 1.25e9
    latency: float = 50e-6
    update_per_byte: float = 0.3e-9
    average_per_byte: float = 0.1e-9
    request_time: float = 200e-6
    worker_overhead: float = 0.0
    stragglers: Stragglers = field(default_factory=Stragglers)
    failures: Failures = field(default_factory=Failures)
    batch: int | None = None
    collective: str = "ring"

    def __post_init__(self) -> None:
        for name in ("step_time", "bandwidth"):
            _check(name, getattr(self, name), 0 < getattr(self, name) < math.inf, "more than 0")
        for name in (
            "model_bytes",
            "latency",
            "update_per_byte",
            "average_per_byte",
            "request_time",
            "worker_overhead",
        ):
            _check(name, getattr(self, name), 0 <= getattr(self, name) < math.inf, "0 or more")
        if self.batch is not None:
            _check("batch", self.batch, self.batch >= 1, "a whole number of at least 1, or leave it out")
        _check("collective", self.collective, self.collective in ("ring", "tree"), "ring or tree")

    @property
    def transfer_time(self) -> float:
        """A whole model through one host's link."""
        return self.model_bytes / self.bandwidth

    @property
    def alone(self) -> float:
        """Gradients per second of one worker by itself, which updates its own variables."""
        return 1 / (self.step_time + self.update_per_byte * self.model_bytes)


def _check(name: str, value: object, is_good: bool, allowed: str) -> None:
    if not is_good:
        raise LaunchError(f"{name}={value!r} cannot be planned with: give {allowed}")
