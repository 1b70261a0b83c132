"""Functions that take turns, so that a disturbance affects all of them; and the ratios of their times, round by round."""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.racing.figures import summary

Act = Callable[[], object]


@dataclass(frozen=True)
class Times:
    """Durations of functions.

    Attributes:
        rounds: The median of each round, by name.
    """

    rounds: dict[str, list[float]]

    def seconds(self, name: str) -> float:
        """Return the median of all rounds."""
        return statistics.median(self.rounds[name])

    def ratios(self, name: str, against: str = "bare") -> list[float]:
        """Return how many times longer one took than another, round by round."""
        return [mine / other for mine, other in zip(self.rounds[name], self.rounds[against], strict=True)]

    def compare(
        self,
        case: str,
        name: str,
        against: str = "bare",
        *,
        most: float | None = None,
        most_microseconds: float | None = None,
    ) -> dict[str, Any]:
        """Return one line of a report.

        Args:
            case: What was done.
            name: The contender.
            against: The contender to compare with.
            most: The ratio to stay under.
            most_microseconds: The time to stay under.
        """
        return {
            "case": case,
            "name": name,
            "against": against,
            "microseconds": 1e6 * self.seconds(name),
            "microseconds against": 1e6 * self.seconds(against),
            "ratio": summary(self.ratios(name, against)),
            "most": most,
            "most microseconds": most_microseconds,
        }


def take_turns(acts: dict[str, Act], rounds: int, seconds_per_act: float) -> Times:
    """Time each function repeatedly, for about this many seconds each, in a number of rounds."""
    repeats = {}
    for name, act in acts.items():
        for _ in range(3):
            act()
        repeats[name] = max(1, int(seconds_per_act / rounds / timed(act)))
    found: dict[str, list[float]] = {name: [] for name in acts}
    for _ in range(rounds):
        for name, act in acts.items():
            found[name].append(statistics.median(timed(act) for _ in range(repeats[name])))
    return Times(found)


def timed(act: Act) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def rounds_wanted(usual: int) -> int:
    """Return the value of `--rounds` on the command line."""
    if "--rounds" not in sys.argv:
        return usual
    return int(sys.argv[sys.argv.index("--rounds") + 1])


def show(lines: list[dict[str, Any]]) -> None:
    """Print the comparisons."""
    for line in lines:
        ratio = line["ratio"]
        limits = [f"≤ {line['most']:g}"] if line["most"] is not None else []
        limits += [f"≤ {line['most microseconds']:g} µs"] if line["most microseconds"] is not None else []
        print(
            f"{line['case']:24} {line['name']:16} {line['microseconds']:10.1f} µs  {line['against']} "
            f"{line['microseconds against']:10.1f} µs  × {ratio['median']:.2f} "
            f"({ratio['lower quartile']:.2f} – {ratio['upper quartile']:.2f})"
            + (f"  ({', '.join(limits)})" if limits else "")
        )
