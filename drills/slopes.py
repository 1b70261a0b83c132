"""Growth of a quantity: the slope of a line through readings, and its uncertainty."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

HOUR = 3600.0
CERTAINTY = 3.0
"""Standard errors by which a slope must be beyond what is allowed before it counts."""
BLOCK = 10
"""Readings whose mean is one point of the line: readings that follow each other are not independent."""

Life: TypeAlias = Sequence[tuple[float, float]]
"""Readings of one process: the second of its life, and the value."""
Points: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Slope:
    """The growth per hour, and its standard error; NaN with too few points."""

    growth: float
    error: float

    def is_beyond(self, allowed: float) -> bool:
        """Return whether the growth per hour certainly exceeds this."""
        return self.growth - CERTAINTY * self.error > allowed

    def __str__(self) -> str:
        return "too short" if np.isnan(self.growth) else f"{self.growth:+.1f} ± {self.error:.1f}"


def slope(lives: Sequence[Life]) -> Slope:
    """Return the slope that the lives of a task have in common, each of which may have its own level."""
    points = [_without_level(_blocks(life)) for life in lives]
    seconds, values = np.concatenate([np.zeros((0, 2)), *points]).T
    spread = float(seconds @ seconds)
    freedom = len(seconds) - sum(len(each) > 0 for each in points) - 1
    if freedom < 1 or spread == 0:
        return Slope(float("nan"), float("nan"))
    found = float(seconds @ values) / spread
    rest = values - found * seconds
    return Slope(found * HOUR, float(np.sqrt(rest @ rest / freedom / spread)) * HOUR)


def later_half(life: Life) -> Life:
    """Return the half of a life that shows whether a process leaks.

    Memory that threads free stays with the allocator, in one of several arenas for each core; a process grows until rare events
    have met each of them. How long that takes depends on how often they come, so no fixed number of seconds is right for all.
    A leak shows in this half too.
    """
    return life[len(life) // 2 :]


def _blocks(life: Life) -> Points:
    whole = len(life) // BLOCK * BLOCK
    blocks: Points = np.asarray(life[:whole], float).reshape(-1, BLOCK, 2).mean(axis=1)
    return blocks


def _without_level(points: Points) -> Points:
    return np.subtract(points, points.mean(axis=0)) if len(points) else points
