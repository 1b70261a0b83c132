"""One race: every contender with its best number of threads, then rounds in which the contenders take turns."""

import math
import os
import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self

from benchmarks.racing.conversation import Absent
from benchmarks.racing.processes import Failed
from benchmarks.racing.races import Comparison, Contender, Race

TRIALS, TRIAL_SECONDS = 3, 0.5


class Turn(NamedTuple):
    """The result of one turn.

    Attributes:
        rate: Units trained per second.
        cost: Seconds of CPU time, of all processes together, per unit.
    """

    rate: float
    cost: float


class Runner(Protocol):
    """A contender with its processes."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def wait_until_ready(self) -> None:
        """Return when it can train, or raise `Absent` or `Failed`."""

    def warm_up(self) -> float | None:
        """Train for the first time. Return the loss if it must be the same for all contenders."""

    def turn(self, seconds: float) -> Turn:
        """Train for about this many seconds."""


Start = Callable[[Contender, int | None], Runner]
"""Starts a contender with a number of threads."""


@dataclass
class Result:
    """The result of a contender.

    Attributes:
        threads: The best number of threads; None is the framework's own choice.
        tried: Rates in the warm-up, by number of threads.
        turns: One for each round.
    """

    threads: int | None
    tried: dict[int | None, float]
    turns: list[Turn] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        """The rate in each round."""
        return [turn.rate for turn in self.turns]

    @property
    def costs(self) -> list[float]:
        """The CPU time of a unit in each round."""
        return [turn.cost for turn in self.turns]


@dataclass
class Outcome:
    """The outcome of a race.

    Attributes:
        race: Its name.
        model: The name of the model.
        unit: The unit of the rates, such as `examples`.
        load: The machine's load average just before.
        results: The results, by contender.
        absent: Why contenders took no part, by contender.
        failed: Errors, by contender.
    """

    race: Race
    model: str
    unit: str
    load: float
    results: dict[str, Result] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def ratios(self, comparison: Comparison) -> list[float]:
        """Return the ratio in each round; empty if one of the two is missing."""
        above, below = (self.results.get(name) for name in (comparison.name, comparison.against))
        if above is None or below is None:
            return []
        return [mine / theirs for mine, theirs in zip(above.rates, below.rates, strict=True)]

    def ratio_of_costs(self, comparison: Comparison) -> float:
        """Return the ratio by CPU time, which holds on a machine that is busy throughout."""
        above, below = (self.results[name].costs for name in (comparison.name, comparison.against))
        return statistics.median(below) / statistics.median(above)

    def ratio_of_best(self, comparison: Comparison) -> float:
        """Return the ratio of the two best rounds: other processes on the machine can only make a round worse."""
        return max(self.results[comparison.name].rates) / max(self.results[comparison.against].rates)


def measure(race: Race, model: str, unit: str, start: Start, rounds: int, seconds: float) -> Outcome:
    """Run a race of a number of rounds, each of about this many seconds per contender."""
    outcome = Outcome(race, model, unit, os.getloadavg()[0])
    with ExitStack() as stack:
        runners: dict[str, Runner] = {}
        losses: dict[str, float] = {}
        for contender in race.contenders:
            _say(f"{model}, {race.name}: {contender.name}")
            try:
                running, result, loss = _at_its_best(stack, contender, start)
                if loss is not None:
                    _check_loss(loss, losses)
                    losses[contender.name] = loss
            except Absent as reason:
                outcome.absent[contender.name] = str(reason)
            except Failed as error:
                outcome.failed[contender.name] = str(error)
            else:
                runners[contender.name], outcome.results[contender.name] = running, result
        for number in range(rounds):
            _say(f"{model}, {race.name}: round {number + 1} of {rounds}")
            # Every other round goes backwards, so that nobody always runs after the same neighbour.
            for name in list(runners) if number % 2 == 0 else list(reversed(runners)):
                try:
                    turn = runners[name].turn(seconds)
                except Failed as error:
                    outcome.failed[name] = str(error)
                    del outcome.results[name]
                    runners.pop(name).__exit__()  # what is left of it must not disturb the others
                else:
                    outcome.results[name].turns.append(turn)
    return outcome


def _at_its_best(stack: ExitStack, contender: Contender, start: Start) -> tuple[Runner, Result, float | None]:
    """Return the contender with its best number of threads, warm, and its loss after the first steps."""
    with ExitStack() as trials:
        candidates: dict[int | None, Runner] = {}
        for threads in dict.fromkeys(contender.threads):
            candidates[threads] = trials.enter_context(start(contender, threads))
        for running in candidates.values():
            running.wait_until_ready()
        losses = {threads: running.warm_up() for threads, running in candidates.items()}
        rates: dict[int | None, list[float]] = {threads: [] for threads in candidates}
        for _ in range(TRIALS):
            for threads, running in candidates.items():
                rates[threads].append(running.turn(TRIAL_SECONDS).rate)
        tried = {threads: statistics.median(values) for threads, values in rates.items()}
        best = max(tried, key=lambda threads: tried[threads])
        for threads, running in candidates.items():
            if threads != best:
                running.__exit__()
        stack.enter_context(trials.pop_all())
    return candidates[best], Result(best, tried), losses[best]


def _check_loss(loss: float, others: dict[str, float]) -> None:
    for name, other in others.items():
        if not math.isclose(loss, other, rel_tol=1e-4):
            raise Failed(f"the loss after the first steps is {loss:.6f}, but {other:.6f} for {name}")


def _say(line: str) -> None:
    print(line, file=sys.stderr)
