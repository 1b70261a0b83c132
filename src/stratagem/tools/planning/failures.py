"""What losses and restarts cost. They are too rare to be simulated step by step, so this is arithmetic.

Every task fails at random, on average once in `mtbf`, and is back after `restart_time`:

- all-reduce: the whole job starts again from its last checkpoint;
- a lost server: all servers go back to their last snapshot; the workers stay;
- a lost worker under sync: the others wait for it, unless there are backup workers left;
- under bounded staleness: they wait once they are as far ahead as they may be;
- under async: its own gradients are missing, and nobody waits.
"""

import math
from dataclasses import dataclass

from stratagem.errors import LaunchError
from stratagem.parameters.rules import BoundedStaleness, Sync
from stratagem.tools.planning.rules import AllReduce, Way


@dataclass(frozen=True)
class Failures:
    """How often tasks fail, and what that costs. Times are seconds.

    Attributes:
        mtbf: Mean time between failures of one task; infinite if they never fail.
        restart_time: From a failure until the task computes again.
        snapshot_interval: From one snapshot, or checkpoint, to the next.
    """

    mtbf: float = math.inf
    restart_time: float = 30.0
    snapshot_interval: float = 60.0

    def __post_init__(self) -> None:
        if not self.mtbf > 0:
            raise LaunchError(f"a mean time between failures of {self.mtbf:g} s: give more than 0")
        if not 0 <= self.restart_time < math.inf:
            raise LaunchError(f"a restart time of {self.restart_time:g} s: give 0 or more")
        if not 0 < self.snapshot_interval < math.inf:
            raise LaunchError(f"a snapshot interval of {self.snapshot_interval:g} s: give more than 0")

    def useful(self, way: Way, workers: int, servers: int, cycle: float) -> float:
        """The share of its speed without failures that a job keeps.

        Args:
            way: How it trains.
            workers: How many there are.
            servers: How many there are.
            cycle: How long a worker takes from push to push.
        """
        if math.isinf(self.mtbf):
            return 1.0
        if isinstance(way, AllReduce):
            return self._going_back(workers)
        return self._going_back(servers) * self._without(way, workers, cycle)

    def _going_back(self, tasks: int) -> float:
        """Useful time of a job that goes back to its last snapshot whenever one of so many tasks fails.

        From one snapshot to the next takes (1/λ + restart)(exp(λ interval) − 1) on average, if failures come at
        random at a rate of λ; work that is cut off before a snapshot is done again.
        """
        rate = tasks / self.mtbf
        exponent = rate * self.snapshot_interval
        if exponent > 500:
            return 0.0
        if exponent == 0:
            return 1.0
        return self.snapshot_interval / ((1 / rate + self.restart_time) * math.expm1(exponent))

    def _without(self, way: Way, workers: int, cycle: float) -> float:
        down = self._down(self.restart_time)
        match way:
            case Sync():
                told = way.for_workers(workers)
                spare = workers - (told.replicas_to_aggregate or workers)
                return _at_most(spare, workers, down)
            case BoundedStaleness(steps):
                stalls = max(0.0, self.restart_time - steps * cycle)
                goes_on = self.restart_time - stalls
                return (1 - self._down(stalls)) ** workers * (1 - self._down(goes_on))
            case _:
                return 1 - down

    def _down(self, seconds: float) -> float:
        """The share of time that one task is down, if it is for so long each time."""
        return seconds / (self.mtbf + seconds)


def _at_most(most: int, count: int, chance: float) -> float:
    """The chance that at most so many of `count` events happen, which are independent."""
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
