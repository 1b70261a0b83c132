"""One race: every contender at its best thread setting, then rounds in which they take turns."""

import math
import os
import statistics
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.strategies.races import Comparison, Contender, Race
from benchmarks.strategies.running import Failed, Running
from benchmarks.strategies.task import Absent
from benchmarks.strategies.work import MODELS, Work

FIRST_STEPS = 10
"""After so many steps all contenders must have the same loss; later, rounding sets them apart."""
TRIALS, TRIAL_SECONDS = 3, 0.5
LEAST_STEPS = 2
"""In a turn, however slow they are."""


@dataclass
class Result:
    """What a contender reached.

    Attributes:
        threads: The number of threads that was best; None is the framework's own choice.
        tried: Examples per second in the warm-up, by number of threads.
        rates: Examples per second in each round.
    """

    threads: int | None
    tried: dict[int | None, float]
    rates: list[float] = field(default_factory=list)


@dataclass
class Outcome:
    """A race that was run.

    Attributes:
        race: Which.
        model: Of what model.
        load: The machine's load average just before.
        results: By contender.
        absent: Why contenders took no part, by contender.
        failed: What went wrong, by contender.
    """

    race: Race
    model: str
    load: float
    results: dict[str, Result] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def ratios(self, comparison: Comparison) -> list[float]:
        """The ratio in each round; none if one of the two is missing."""
        above, below = (self.results.get(name) for name in (comparison.name, comparison.against))
        if above is None or below is None:
            return []
        return [mine / theirs for mine, theirs in zip(above.rates, below.rates, strict=True)]

    def ratio_of_best(self, comparison: Comparison) -> float:
        """The ratio of the two best rounds: what others do on the machine can only make a round worse."""
        return max(self.results[comparison.name].rates) / max(self.results[comparison.against].rates)


def measure(race: Race, model: str, rounds: int, seconds: float) -> Outcome:
    """Run a race: so many rounds of about so many seconds for each contender."""
    work = Work(MODELS[model], race.replicas)
    outcome = Outcome(race, model, os.getloadavg()[0])
    with ExitStack() as stack:
        runners: dict[str, Running] = {}
        losses: dict[str, float] = {}
        for contender in race.contenders:
            _say(f"{model}, {race.name}: {contender.name}")
            try:
                running, result, loss = _at_its_best(stack, contender, work, race.devices)
                _check_loss(loss, losses)
            except Absent as reason:
                outcome.absent[contender.name] = str(reason)
            except Failed as error:
                outcome.failed[contender.name] = str(error)
            else:
                runners[contender.name], outcome.results[contender.name] = running, result
                losses[contender.name] = loss
        steps = {
            name: max(LEAST_STEPS, round(seconds * result.tried[result.threads] / work.rows))
            for name, result in outcome.results.items()
        }
        for number in range(rounds):
            _say(f"{model}, {race.name}: round {number + 1} of {rounds}")
            # Every other round goes backwards, so that nobody always runs after the same neighbour.
            for name in list(runners) if number % 2 == 0 else list(reversed(runners)):
                try:
                    rate = _rate(runners[name], steps[name], work)
                except Failed as error:
                    outcome.failed[name] = str(error)
                    del outcome.results[name]
                    runners.pop(name).__exit__()  # what is left of it must not disturb the others
                else:
                    outcome.results[name].rates.append(rate)
    return outcome


def _at_its_best(
    stack: ExitStack, contender: Contender, work: Work, devices: int
) -> tuple[Running, Result, float]:
    """The contender with the number of threads that suits it best, warm, and its loss after the first steps."""
    with ExitStack() as trials:
        candidates = {}
        for threads in dict.fromkeys(contender.threads):
            candidates[threads] = trials.enter_context(Running(contender, work, devices, threads))
        for running in candidates.values():
            running.wait_until_ready()
        losses = {threads: running.go(FIRST_STEPS)[1] for threads, running in candidates.items()}
        rates: dict[int | None, list[float]] = {threads: [] for threads in candidates}
        steps = {
            threads: max(1, round(TRIAL_SECONDS * _rate(running, LEAST_STEPS, work) / work.rows))
            for threads, running in candidates.items()
        }
        for _ in range(TRIALS):
            for threads, running in candidates.items():
                rates[threads].append(_rate(running, steps[threads], work))
        tried = {threads: statistics.median(values) for threads, values in rates.items()}
        best = max(tried, key=lambda threads: tried[threads])
        for threads, running in candidates.items():
            if threads != best:
                running.__exit__()
        stack.enter_context(trials.pop_all())
    return candidates[best], Result(best, tried), losses[best]


def _rate(running: Running, steps: int, work: Work) -> float:
    """Examples per second."""
    seconds, loss = running.go(steps)
    if not math.isfinite(loss):
        raise Failed(f"the loss became {loss}")
    return steps * work.rows / seconds


def _check_loss(loss: float, others: dict[str, float]) -> None:
    for name, other in others.items():
        if not math.isclose(loss, other, rel_tol=1e-4):
            raise Failed(f"the loss after {FIRST_STEPS} steps is {loss:.6f}, but {other:.6f} for {name}")


def _say(line: str) -> None:
    print(line, file=sys.stderr)
