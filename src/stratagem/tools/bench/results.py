"""The results of `stratagem bench`: workers' reports, what a contender's workers reached together, medians, and advice."""

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from stratagem.tools.bench.contenders import ONE_DEVICE, Contender

Curve = tuple[tuple[float, float], ...]
"""Points of seconds and loss."""

GAIN = 1.1
"""Several replicas must be this much faster than one device to be worthwhile."""
LEAD = 1.15
"""Workers at their own pace must be this much faster than workers in step to be worth stale gradients."""
EVEN = 0.75
"""Workers are uneven if the slowest takes fewer than this many steps for each step of the fastest."""
CLOSE = 0.9
"""Bounded staleness is the better choice if its speed is at least this share of async's."""


@dataclass(frozen=True)
class WorkerReport:
    """The report of one worker."""

    steps: int
    seconds: float  # duration of these steps
    examples: int  # number of examples that this worker trained on
    # Number of its pushes at each staleness; empty if it does not push.
    staleness: dict[int, int] = field(default_factory=dict)
    curve: Curve = ()  # the mean loss of its batches over time; the chief's is shown
    # The final loss on examples that were not trained on; only the chief reports it.
    loss: float | None = None

    def write(self, path: Path) -> None:
        """Write the report to a file, atomically."""
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(asdict(self)))
        unfinished.rename(path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a report from a file."""
        values = json.loads(path.read_text())
        values["staleness"] = {int(steps): count for steps, count in values["staleness"].items()}
        values["curve"] = tuple((seconds, loss) for seconds, loss in values["curve"])
        return cls(**values)


@dataclass(frozen=True)
class Measurement:
    """The result of a contender in one round, all its workers together."""

    steps_per_second: float  # updates of the model
    examples_per_second: float  # examples of all workers
    loss: float  # the loss after the time that every contender has
    staleness: float | None  # the mean staleness of pushes; `None` where nothing is pushed
    most_staleness: int | None  # the largest staleness
    paces: tuple[float, ...]  # steps per second of each worker
    curve: Curve  # the loss over time

    @classmethod
    def of(cls, contender: Contender, reports: Sequence[WorkerReport]) -> Self:
        """Combine the reports of a contender's workers, the chief's first."""
        paces = tuple(report.steps / report.seconds for report in reports)
        counts: Counter[int] = Counter()
        for report in reports:
            counts.update(report.staleness)
        pushes = counts.total()
        chief = reports[0]
        return cls(
            steps_per_second=min(paces) if contender.kind.in_step else sum(paces),
            examples_per_second=sum(report.examples / report.seconds for report in reports),
            loss=float("nan") if chief.loss is None else chief.loss,
            staleness=sum(steps * count for steps, count in counts.items()) / pushes if pushes else None,
            most_staleness=max(counts) if pushes else None,
            paces=paces,
            curve=chief.curve,
        )


@dataclass
class Result:
    """A contender and its rounds."""

    contender: Contender
    rounds: list[Measurement] = field(default_factory=list)  # its result in each round
    failure: str | None = None  # the error that removed it from further rounds, if any

    @property
    def is_whole(self) -> bool:
        """Whether it has results and did not fail."""
        return bool(self.rounds) and self.failure is None

    @property
    def steps_per_second(self) -> float:
        """The median of the rounds."""
        return statistics.median(each.steps_per_second for each in self.rounds)

    @property
    def examples_per_second(self) -> float:
        """The median of the rounds."""
        return statistics.median(each.examples_per_second for each in self.rounds)

    @property
    def loss(self) -> float:
        """The median of the rounds."""
        return statistics.median(each.loss for each in self.rounds)

    @property
    def staleness(self) -> float | None:
        """The median of the rounds' means; `None` where nothing is pushed."""
        means = [each.staleness for each in self.rounds if each.staleness is not None]
        return statistics.median(means) if means else None

    @property
    def most_staleness(self) -> int | None:
        """The largest staleness of all rounds."""
        return max(
            (each.most_staleness for each in self.rounds if each.most_staleness is not None), default=None
        )

    @property
    def evenness(self) -> float:
        """Steps of the slowest worker for each step of the fastest."""
        return statistics.median(min(each.paces) / max(each.paces) for each in self.rounds)

    @property
    def median_round(self) -> Measurement:
        """The round with the median speed, whose curve is drawn."""
        return sorted(self.rounds, key=lambda each: each.examples_per_second)[len(self.rounds) // 2]

    def efficiency(self, one_device: "Result") -> float:
        """Return the speed of a replica, relative to one device by itself."""
        return self.examples_per_second / (self.contender.replicas * one_device.examples_per_second)


def advise(results: Sequence[Result], cores: int) -> list[str]:
    """Return a few sentences, the first of which says what to use, for a machine with this number of cores."""
    whole = [result for result in results if result.is_whole]
    one = next((result for result in whole if result.contender.strategy == ONE_DEVICE), None)
    several = [result for result in whole if result.contender.replicas > 1]
    if one is None:
        return ["No advice: one device, which all others are compared with, did not finish."]
    if not several:
        return ["No advice: nothing with several workers or devices was measured; add --workers 1,2."]
    workers = [result for result in several if result.contender.workers > 1]
    best, reason = _choice(several, workers)
    fastest = _fastest(several)
    if _gain(fastest, one) < GAIN:
        return [_no_gain(one, fastest, cores), *_best_of_workers(best, workers)]
    if _gain(best, one) < GAIN:  # only devices of one process gain, which have no slow worker among them
        advice = _use(fastest, one, "Several processes gain nothing here.")
        return [advice, *_best_of_workers(_fastest(workers), workers)]
    return [_use(best, one, reason)]


def _use(best: Result, one: Result, reason: str) -> str:
    gain = _gain(best, one)
    return f"Use {best.contender.kind.code} ({best.contender.name}): {gain:.1f} times one device's speed. {reason}"


def _gain(result: Result, one: Result) -> float:
    return result.examples_per_second / one.examples_per_second


def _choice(several: Sequence[Result], workers: Sequence[Result]) -> tuple[Result, str]:
    """Return the contender to use, and why."""
    in_step = [result for result in several if result.contender.kind.in_step]
    at_own_pace = [result for result in several if not result.contender.kind.in_step]
    uneven = _unevenness(workers)
    # Devices of one process have no slow worker among them: they are no alternative where workers are uneven.
    rivals = [result for result in in_step if result in workers] if uneven is not None else in_step
    if not rivals and not at_own_pace:
        rivals = in_step
    if not at_own_pace:
        best = _fastest(rivals)
        return best, "It was not compared with a strategy that lets workers go at their own pace."
    if not rivals:
        return _fastest(at_own_pace), "It was not compared with a strategy that keeps workers in step."
    together, apart = _fastest(rivals), _fastest(at_own_pace)
    lead = apart.examples_per_second / together.examples_per_second
    if lead < LEAD:
        return together, (
            f"The workers are balanced and the model is small enough: staying in step costs little "
            f"({apart.contender.name} has {lead:.1f} times its speed), and gives the results of one device."
        )
    cause = (
        f"the workers are uneven (the slowest takes {uneven:.0%} of the fastest's steps)"
        if uneven is not None
        else "communication takes long compared with computing"
    )
    best = _bounded_if_close(apart, at_own_pace)
    stale = (
        f", at the price of gradients {best.staleness:.1f} steps stale on average" if best.staleness else ""
    )
    return best, (
        f"Since {cause}, workers should not wait for each other: going at their own pace brings {lead:.1f} times the speed of "
        f"{together.contender.name}{stale}.{_by_loss(best, together)}"
    )


def _bounded_if_close(apart: Result, at_own_pace: Sequence[Result]) -> Result:
    """Return bounded staleness at the same number of replicas if its bound costs next to nothing, else `apart`."""
    for result in at_own_pace:
        is_rival = (
            result.contender.strategy == "bounded" and result.contender.replicas == apart.contender.replicas
        )
        if is_rival and result.examples_per_second >= CLOSE * apart.examples_per_second:
            return result
    return apart


def _by_loss(best: Result, together: Result) -> str:
    if best.loss <= together.loss:
        return f" Its loss after the same time is lower, too ({best.loss:.3f} against {together.loss:.3f})."
    return (
        f" But its loss after the same time is higher ({best.loss:.3f} against {together.loss:.3f}): "
        "try a smaller learning rate."
    )


def _no_gain(one: Result, fastest: Result, cores: int) -> str:
    return (
        f"Use {one.contender.kind.code}: several processes or devices gain nothing here. The fastest of them, "
        f"{fastest.contender.name}, trains {fastest.examples_per_second:,.0f} examples/s; one device, which already computes on "
        f"all {cores} cores of this machine, trains {one.examples_per_second:,.0f}."
    )


def _best_of_workers(best: Result, workers: Sequence[Result]) -> list[str]:
    if best not in workers:
        return []
    return [f"Among several processes, {best.contender.name} does best ({best.contender.kind.code})."]


def _unevenness(workers: Sequence[Result]) -> float | None:
    """Return the evenness of workers that go at their own pace if they are uneven, else `None`."""
    values = [result.evenness for result in workers if result.contender.strategy == "async"]
    values = values or [result.evenness for result in workers if not result.contender.kind.in_step]
    return min(values) if values and min(values) < EVEN else None


def _fastest(results: Sequence[Result]) -> Result:
    return max(results, key=lambda result: result.examples_per_second)
