"""What was measured: each worker's own report, what the workers of a contender reached together, and medians of rounds."""

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from stratagem.tools.bench.contenders import Contender

Curve = tuple[tuple[float, float], ...]
"""Points of seconds and loss."""


@dataclass(frozen=True)
class WorkerReport:
    """What one worker did.

    Attributes:
        steps: How many steps it took.
        seconds: How long that took it.
        examples: How many examples were its own.
        staleness: How many of its pushes were so many steps stale, if it pushed.
        curve: The mean loss of its batches over time; the chief's is shown.
        loss: On examples that were not trained on, at the end; only the chief's.
    """

    steps: int
    seconds: float
    examples: int
    staleness: dict[int, int] = field(default_factory=dict)
    curve: Curve = ()
    loss: float | None = None

    def write(self, path: Path) -> None:
        """Leave it in a file, whole or not at all."""
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(asdict(self)))
        unfinished.rename(path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """What was left in a file."""
        told = json.loads(path.read_text())
        told["staleness"] = {int(steps): count for steps, count in told["staleness"].items()}
        told["curve"] = tuple((seconds, loss) for seconds, loss in told["curve"])
        return cls(**told)


@dataclass(frozen=True)
class Measurement:
    """What a contender's workers reached together in one round.

    Attributes:
        steps_per_second: Updates of the model.
        examples_per_second: Of all workers together.
        loss: After the same time as all other contenders.
        staleness: Of the average push; None where nothing is pushed.
        most_staleness: Of the stalest.
        paces: Steps per second of each worker.
        curve: The loss over time.
    """

    steps_per_second: float
    examples_per_second: float
    loss: float
    staleness: float | None
    most_staleness: int | None
    paces: tuple[float, ...]
    curve: Curve

    @classmethod
    def of(cls, contender: Contender, reports: Sequence[WorkerReport]) -> Self:
        """From the reports of its workers, the chief's first."""
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
    """A contender and its rounds.

    Attributes:
        contender: Who.
        rounds: What it reached in each.
        failure: Why it took no further part, if it went wrong.
    """

    contender: Contender
    rounds: list[Measurement] = field(default_factory=list)
    failure: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it reached anything, and nothing went wrong."""
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
        """The median of the rounds' means; None where nothing is pushed."""
        known = [each.staleness for each in self.rounds if each.staleness is not None]
        return statistics.median(known) if known else None

    @property
    def most_staleness(self) -> int | None:
        """Of the stalest push of all rounds."""
        return max(
            (each.most_staleness for each in self.rounds if each.most_staleness is not None), default=None
        )

    @property
    def evenness(self) -> float:
        """How many steps the slowest worker takes for each of the fastest's."""
        return statistics.median(min(each.paces) / max(each.paces) for each in self.rounds)

    @property
    def usual_round(self) -> Measurement:
        """The round in the middle, by speed: its curve is drawn."""
        return sorted(self.rounds, key=lambda each: each.examples_per_second)[len(self.rounds) // 2]

    def efficiency(self, one_device: "Result") -> float:
        """Of a replica, against one device by itself."""
        return self.examples_per_second / (self.contender.replicas * one_device.examples_per_second)
