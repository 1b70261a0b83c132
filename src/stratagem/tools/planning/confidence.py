"""How long to simulate: batch after batch, until the mean is known well enough or it has taken too long."""

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Effort:
    """How much simulating a figure is worth.

    Attributes:
        precision: Half the width of the 95 % confidence interval, relative to the mean, that is enough.
        rounds: Pushes of each worker in one batch.
        least: Batches to simulate in any case.
        most: Pushes after which it is given up to become more precise.
    """

    precision: float = 0.01
    rounds: int = 4
    least: int = 6
    most: int = 150_000


ROUGH = Effort(precision=0.03, rounds=2, least=2, most=40_000)
"""Enough to compare numbers of servers."""
_LEAST_PUSHES = 48
"""In a batch, however few the workers."""


def batch_size(effort: Effort, workers: int) -> int:
    """How many pushes make a batch."""
    return max(effort.rounds * workers, _LEAST_PUSHES)


@dataclass
class BatchMeans:
    """The mean of what batches gave, and how far it is to be trusted."""

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
        # Student's t at 97.5 %, to half a percent from three degrees of freedom on.
        quantile = 1.96 + 2.37 / freedom + 2.82 / freedom**2
        return quantile * math.sqrt(variance / len(self.values)) / mean if mean else 0.0

    def is_enough(self, effort: Effort, pushes: int) -> bool:
        """Whether to stop, after so many pushes."""
        if len(self.values) < 2 or (pushes < effort.most and len(self.values) < effort.least):
            return False
        return pushes >= effort.most or self.half_width <= effort.precision
