"""The figures of a job and its machines that a plan starts from: times, sizes, failures; given by a user, or measured here."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

from stratagem.errors import LaunchError
from stratagem.parameters.rules import BoundedStaleness, Sync
from stratagem.tools.planning.rule_models import AllReduce, PlannedRule
from stratagem.tools.planning.stragglers import Stragglers

_LEAST_PER_BYTE = 1e-13
"""Seconds: a smaller difference between two measurements is noise."""


@dataclass(frozen=True)
class FailureModel:
    """How often tasks fail, and what that costs. Times are in seconds.

    Failures are too rare to simulate step by step, so their cost is computed. Every task fails at random, once in `mtbf` on
    average, and computes again after `restart_time`:

    - all-reduce: the whole job restarts from its last checkpoint;
    - a lost server: all servers return to their last snapshot, and the workers stay;
    - a lost worker under sync: the others wait for it, unless backup workers are left;
    - under bounded staleness: the others wait once they are as far ahead as they may be;
    - under async: its own gradients are missing, and nobody waits.
    """

    mtbf: float = math.inf  # mean time between failures of one task; infinite if tasks never fail
    restart_time: float = 30.0  # from a failure until the task computes again
    snapshot_interval: float = 60.0  # from one snapshot, or checkpoint, to the next

    def __post_init__(self) -> None:
        if not self.mtbf > 0:
            raise LaunchError(f"a mean time between failures of {self.mtbf:g} s: give more than 0")
        if not 0 <= self.restart_time < math.inf:
            raise LaunchError(f"a restart time of {self.restart_time:g} s: give 0 or more")
        if not 0 < self.snapshot_interval < math.inf:
            raise LaunchError(f"a snapshot interval of {self.snapshot_interval:g} s: give more than 0")

    def useful_share(self, rule: PlannedRule, workers: int, servers: int, cycle: float) -> float:
        """Return the share of its failure-free speed that a job keeps, whose workers push once every `cycle` seconds."""
        if math.isinf(self.mtbf):
            return 1.0
        if isinstance(rule, AllReduce):
            return self._rollback_share(workers)
        return self._rollback_share(servers) * self._worker_share(rule, workers, cycle)

    def _rollback_share(self, tasks: int) -> float:
        """Return the useful share of a job that returns to its last snapshot whenever one of its tasks fails.

        With failures at random at a rate of λ, it takes (1/λ + restart)(exp(λ interval) − 1) on average from one snapshot
        to the next; work that is interrupted before a snapshot is repeated.
        """
        rate = tasks / self.mtbf
        exponent = rate * self.snapshot_interval
        if exponent > 500:
            return 0.0
        if exponent == 0:
            return 1.0
        return self.snapshot_interval / ((1 / rate + self.restart_time) * math.expm1(exponent))

    def _worker_share(self, rule: PlannedRule, workers: int, cycle: float) -> float:
        down = self._down(self.restart_time)
        match rule:
            case Sync():
                aggregated = rule.pushes_per_update(workers)
                return _probability_of_at_most(workers - aggregated, workers, down)
            case BoundedStaleness(steps):
                stalls = max(0.0, self.restart_time - steps * cycle)
                goes_on = self.restart_time - stalls
                return (1 - self._down(stalls)) ** workers * (1 - self._down(goes_on))
            case _:
                return 1 - down

    def _down(self, seconds: float) -> float:
        """Return the share of time that one task is down, if each failure takes it down for `seconds`."""
        return seconds / (self.mtbf + seconds)


def _probability_of_at_most(most: int, count: int, chance: float) -> float:
    """Return the probability that at most `most` of `count` independent events happen."""
    if chance <= 0:
        return 1.0
    logs = math.log(chance), math.log1p(-chance)
    total = sum(
        math.exp(
            math.lgamma(count + 1)
            - math.lgamma(number + 1)
            - math.lgamma(count - number + 1)
            + number * logs[0]
            + (count - number) * logs[1]
        )
        for number in range(most + 1)
    )
    return min(1.0, total)


@dataclass(frozen=True)
class JobProfile:
    """One job on one kind of machine. Times are in seconds."""

    step_time: float  # mean time in which a worker computes one gradient
    model_bytes: float  # the size of a push, and of the parameters that come back
    bandwidth: float = 1.25e9  # bytes per second of one host's link, in each direction at once
    latency: float = 50e-6  # from one host to another
    update_per_byte: float = 0.3e-9  # a server's time for an update, per byte that it holds
    average_per_byte: float = 0.1e-9  # a server's time to add one more gradient to an average, per byte
    request_time: float = 200e-6  # a server's time for each request, whatever its size
    worker_overhead: float = 0.0  # a worker's time around each push that is neither computing nor sending
    stragglers: Stragglers = field(default_factory=Stragglers)  # how the time of a step varies
    failures: FailureModel = field(default_factory=FailureModel)  # how often tasks fail, and what that costs
    batch: int | None = None  # examples of one gradient; `None` to count none
    collective: str = "ring"  # the all-reduce algorithm: `ring`, or `tree` (as NCCL's for many hosts)

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
        """The time of a whole model through one host's link."""
        return self.model_bytes / self.bandwidth

    @property
    def single_worker_pace(self) -> float:
        """Gradients per second of one worker by itself, which updates its own variables."""
        return 1 / (self.step_time + self.update_per_byte * self.model_bytes)


def _check(name: str, value: object, is_allowed: bool, allowed: str) -> None:
    if not is_allowed:
        raise LaunchError(f"{name}={value!r} cannot be planned with: give {allowed}")


@dataclass(frozen=True)
class MachineTimes:
    """Times that a short job with one server and one worker measured: seconds, lower quartiles of many."""

    model_bytes: float  # the size of the model
    gradient: float  # a worker's time for one gradient of that model
    step: float  # a whole step of the training loop, with its push
    push: float  # from a push of all gradients until the parameters are back
    pull: float  # the parameters alone
    empty_push: float  # a push of a model of a few bytes
    empty_pull: float  # a pull of that model
    average_per_byte: float  # the time to add one gradient to another

    @property
    def transfer_per_byte(self) -> float:
        """One way: how much longer a pull of the model takes than one of a few bytes."""
        return max(_LEAST_PER_BYTE, (self.pull - self.empty_pull) / self.model_bytes)

    @property
    def update_per_byte(self) -> float:
        """The time of a push without the transfer both ways, and without the time of an empty push."""
        both_ways = 2 * self.transfer_per_byte * self.model_bytes
        return max(0.0, (self.push - self.empty_push - both_ways) / self.model_bytes)

    def profile(self) -> JobProfile:
        """Return the profile of the measured job.

        Half of an empty push is taken to be the server's own work, and a quarter the latency each way.
        """
        return JobProfile(
            step_time=self.gradient,
            model_bytes=self.model_bytes,
            bandwidth=1 / self.transfer_per_byte,
            latency=self.empty_push / 4,
            request_time=self.empty_push / 2,
            update_per_byte=self.update_per_byte,
            average_per_byte=self.average_per_byte,
            worker_overhead=max(0.0, self.step - self.gradient - self.push),
        )

    def write(self, path: Path) -> None:
        """Write the times to a file."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> "MachineTimes":
        """Read the times from a file."""
        return cls(**json.loads(path.read_text()))
