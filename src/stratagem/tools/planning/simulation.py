"""The result of a simulation, how long to simulate, and the simulation of workers that all-reduce, without servers."""

import math
from dataclasses import dataclass, field

import numpy as np

from stratagem.tools.planning.job_profile import JobProfile

WORKER_COMPUTE, WORKER_LINK = "worker compute", "worker link"
SERVER_LINK, SERVER_UPDATE = "server link", "server update"
_LEAST_PUSHES = 48
"""In a batch, however few the workers."""


@dataclass(frozen=True)
class SimulationResult:
    """The steady pace of one job, without failures."""

    updates_per_second: float  # global steps
    gradients_per_second: float  # pushes that became part of an update
    mean_staleness: float  # updates between the parameters that a gradient was computed on and its own update
    p99_staleness: int  # the staleness that 99 % of gradients do not exceed
    dropped: float  # the share of pushes that were dropped
    waiting: float  # the share of its time that a worker waits for other workers
    round_trip: float  # mean seconds from the beginning of a push until the parameters are back
    busy: dict[str, float]  # for each resource, the share of time that it is at work
    half_width: float  # half the 95 % confidence interval of the pace, relative to the pace
    pushes: int  # the number of simulated pushes

    @property
    def busiest(self) -> str:
        """The resource that is at work for the largest share of time."""
        return max(self.busy, key=lambda name: self.busy[name])


@dataclass(frozen=True)
class Precision:
    """How precise a result has to be. Batches of pushes are simulated until the mean of their paces is."""

    # Half the width of the 95 % confidence interval, relative to the mean, that is enough.
    relative: float = 0.01
    rounds: int = 4  # pushes of each worker in one batch
    least: int = 6  # batches to simulate in any case
    most: int = 150_000  # pushes after which to stop, however imprecise the result

    def batch_size(self, workers: int) -> int:
        """Return the number of pushes in a batch."""
        return max(self.rounds * workers, _LEAST_PUSHES)


ROUGH = Precision(relative=0.03, rounds=2, least=2, most=40_000)
"""Enough to compare numbers of servers."""


@dataclass
class BatchMeans:
    """The mean over batches, and its precision."""

    values: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """The mean of all batches."""
        return math.fsum(self.values) / len(self.values)

    @property
    def half_width(self) -> float:
        """Half of the 95 % confidence interval, relative to the mean."""
        freedom = len(self.values) - 1
        if freedom < 1:
            return math.inf
        mean = self.mean
        variance = math.fsum((value - mean) ** 2 for value in self.values) / freedom
        # Student's t at 97.5 %, accurate to half a percent from three degrees of freedom on.
        quantile = 1.96 + 2.37 / freedom + 2.82 / freedom**2
        return quantile * math.sqrt(variance / len(self.values)) / mean if mean else 0.0

    def is_enough(self, precision: Precision, pushes: int) -> bool:
        """Return whether to stop after this number of pushes."""
        if len(self.values) < 2 or (pushes < precision.most and len(self.values) < precision.least):
            return False
        return pushes >= precision.most or self.half_width <= precision.relative


def all_reduce_time(profile: JobProfile, workers: int) -> float:
    """Return the seconds of an all-reduce of all gradients.

    A ring sends 2(W − 1) messages in sequence, each a W-th of the model. A tree (two of them, each for half of the model)
    goes up and down in about log₂ W messages each way, cut into parts so small that they overlap.
    """
    if workers == 1:
        return 0.0
    others = (workers - 1) / workers
    hops = 2 * (workers - 1) if profile.collective == "ring" else 2 * math.ceil(math.log2(workers))
    adding = profile.average_per_byte * profile.model_bytes * others
    return hops * profile.latency + 2 * others * profile.transfer_time + adding


def simulate_all_reduce(
    profile: JobProfile, workers: int, precision: Precision, seed: int = 0
) -> SimulationResult:
    """Return the steady pace of a job without servers: each step takes as long as its slowest worker's."""
    random = np.random.default_rng(seed)
    pace = profile.step_time * profile.stragglers.factors(workers)
    summing = all_reduce_time(profile, workers)
    constant = summing + profile.update_per_byte * profile.model_bytes + profile.worker_overhead
    steps = -(-precision.batch_size(workers) // workers)
    means = BatchMeans()
    slowest = computed = 0.0
    done = 0
    while not means.is_enough(precision, done * workers):
        computing = pace * profile.stragglers.draw(random, (steps, workers))
        longest = float(computing.max(axis=1).sum())
        means.values.append(steps * workers / (longest + steps * constant))
        slowest += longest
        computed += float(computing.mean(axis=1).sum())
        done += steps
    span = slowest + done * constant
    return SimulationResult(
        updates_per_second=done / span,
        gradients_per_second=done * workers / span,
        mean_staleness=0.0,
        p99_staleness=0,
        dropped=0.0,
        waiting=(slowest - computed) / span,
        round_trip=summing,
        busy={WORKER_COMPUTE: computed / span, WORKER_LINK: done * summing / span},
        half_width=means.half_width,
        pushes=done * workers,
    )
