"""The plan: every number of workers under every rule, each with as many servers as it is worth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stratagem.errors import LaunchError
from stratagem.tools.planning import ring, serving
from stratagem.tools.planning.confidence import ROUGH, Effort
from stratagem.tools.planning.figures import Figures
from stratagem.tools.planning.rules import AllReduce, Choice, Way, label
from stratagem.tools.planning.simulated import Simulated

GOOD_ENOUGH = 0.05
"""So much slower than with the best number of servers a smaller number may be."""
_NO_GAIN = 0.01
_PATIENCE = 2
"""Doublings without gain after which more servers are not tried."""


@dataclass(frozen=True)
class Line:
    """One number of workers under one rule.

    Attributes:
        workers: How many there are.
        rule: The name that the rule was chosen by.
        way: The rule itself.
        servers: How many it is worth, or was told to have; 0 without any.
        simulated: What the simulation found, without failures.
        useful: The share of that which failures leave.
        examples_per_gradient: If they are to be counted.
        alone: Gradients per second of one worker by itself.
    """

    workers: int
    rule: str
    way: Way
    servers: int
    simulated: Simulated
    useful: float
    examples_per_gradient: int | None
    alone: float

    @property
    def label(self) -> str:
        """What a table calls the rule."""
        return label(self.way)

    @property
    def updates_per_second(self) -> float:
        """Global steps, failures included."""
        return self.simulated.updates_per_second * self.useful

    @property
    def gradients_per_second(self) -> float:
        """Gradients that became part of an update, failures included."""
        return self.simulated.gradients_per_second * self.useful

    @property
    def examples_per_second(self) -> float | None:
        """Examples that became part of an update; `None` if the batch is not known."""
        count = self.examples_per_gradient
        return None if count is None else self.gradients_per_second * count

    @property
    def efficiency(self) -> float:
        """Of each worker, against one by itself."""
        return self.gradients_per_second / (self.workers * self.alone)


def make_plan(
    figures: Figures,
    choices: Sequence[Choice],
    workers: Sequence[int],
    *,
    servers: int | None = None,
    most_servers: int = 64,
    effort: Effort | None = None,
    seed: int = 0,
    tell: Callable[[int, str], object] | None = None,
) -> list[Line]:
    """Simulate every number of workers under every rule.

    Args:
        figures: What is known of the job.
        choices: The rules.
        workers: The numbers of workers.
        servers: How many servers; the smallest number within 5 % of the best by default.
        most_servers: How many to try at most.
        effort: How much simulating a figure is worth.
        seed: Of the random numbers.
        tell: Is told what is simulated next.

    Raises:
        LaunchError: A number that cannot be planned with.
    """
    if not choices or not workers:
        raise LaunchError("there is nothing to plan: give at least one rule and one number of workers")
    if wrong := [count for count in workers if count < 1]:
        raise LaunchError(f"{wrong[0]} workers: give 1 or more")
    if servers is not None and servers < 1:
        raise LaunchError(f"{servers} servers: give 1 or more, or leave it out to have the number found")
    if most_servers < 1:
        raise LaunchError(f"at most {most_servers} servers: give 1 or more")
    lines = []
    for count in workers:
        for choice in choices:
            way = choice.for_workers(count)
            if way is None:
                continue
            if tell is not None:
                tell(count, label(way))
            job = _Job(figures, choice.name, way, count, seed)
            found = servers if servers is not None else job.servers_worth(most_servers)
            lines.append(job.line(0 if isinstance(way, AllReduce) else found, effort or Effort()))
    return lines


class _Job:
    """One number of workers under one rule, with any number of servers."""

    def __init__(self, figures: Figures, rule: str, way: Way, workers: int, seed: int) -> None:
        self._figures = figures
        self._rule = rule
        self._way = way
        self._workers = workers
        self._seed = seed
        self._known: dict[int, float] = {}

    def line(self, servers: int, effort: Effort) -> Line:
        """What comes of so many servers."""
        if isinstance(self._way, AllReduce):
            found = ring.simulate(self._figures, self._workers, effort, self._seed)
        else:
            found = serving.simulate(self._figures, self._way, self._workers, servers, effort, self._seed)
        cycle = self._workers / found.gradients_per_second
        useful = self._figures.failures.useful(self._way, self._workers, servers, cycle)
        return Line(
            self._workers,
            self._rule,
            self._way,
            servers,
            found,
            useful,
            self._figures.batch,
            self._figures.alone,
        )

    def servers_worth(self, most: int) -> int:
        """The smallest number of servers within 5 % of the best: doubled while it helps, then halved in between."""
        if isinstance(self._way, AllReduce):
            return 0
        tried = [1]
        best, without_gain = self._pace(1), 0
        while tried[-1] * 2 <= most and without_gain < _PATIENCE:
            tried.append(tried[-1] * 2)
            pace = self._pace(tried[-1])
            without_gain = 0 if pace > best * (1 + _NO_GAIN) else without_gain + 1
            best = max(best, pace)
        enough = best * (1 - GOOD_ENOUGH)
        high = next(count for count in tried if self._pace(count) >= enough)
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            if self._pace(middle) >= enough:
                high = middle
            else:
                low = middle
        return high

    def _pace(self, servers: int) -> float:
        if servers not in self._known:
            self._known[servers] = self.line(servers, ROUGH).gradients_per_second
        return self._known[servers]
