"""Measurements as tables and as data."""

import statistics
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.racing.figures import first_and_last_line, middle_half, summary
from benchmarks.racing.measuring import Outcome, Result
from benchmarks.racing.races import CORES, Comparison

WIDTH = 120
"""Columns of a table that goes to a file."""


def as_data(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return everything, for `--json`."""
    return [
        {
            "model": outcome.model,
            "race": outcome.race.name,
            "cores": CORES,
            "load before": outcome.load,
            "contenders": [
                {
                    "name": name,
                    "threads": _threads(result.threads),
                    "tried": {_threads(threads): rate for threads, rate in result.tried.items()},
                    f"{outcome.unit} per second": summary(result.rates),
                    "rounds": result.rates,
                    f"CPU seconds per {outcome.unit.removesuffix('s')}": statistics.median(result.costs),
                }
                for name, result in outcome.results.items()
            ],
            "comparisons": [
                {
                    "name": comparison.name,
                    "against": comparison.against,
                    "ratio": summary(ratios),
                    "ratio by CPU time": outcome.ratio_of_costs(comparison),
                    "ratio of best rounds": outcome.ratio_of_best(comparison),
                    "target": comparison.targets.get(outcome.model),
                    "aim": comparison.aims.get(outcome.model),
                }
                for comparison in outcome.race.comparisons
                if (ratios := outcome.ratios(comparison))
            ],
            "absent": outcome.absent,
            "failed": {name: first_and_last_line(why) for name, why in outcome.failed.items()},
        }
        for outcome in outcomes
    ]


def show(outcome: Outcome) -> None:
    """Print the tables of one race."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    title = f"{outcome.model}, {outcome.race.name} ({CORES} cores, load before {outcome.load:.1f})"
    first = outcome.race.contenders[0].name
    table = Table(
        "contender", "threads", f"{outcome.unit}/s", "middle half", "CPU ms each", f"× {first}", title=title
    )
    for name, result in outcome.results.items():
        against_first = outcome.ratios(Comparison(name, first))
        table.add_row(
            name,
            _trials(result),
            f"{statistics.median(result.rates):,.0f}",
            "{:,.0f} – {:,.0f}".format(*middle_half(result.rates)),
            f"{1000 * statistics.median(result.costs):.3g}",
            f"{statistics.median(against_first):.2f}" if against_first else "",
        )
    console.print(table)
    table = Table("ratio", "median", "middle half", "of best", "by CPU time", "target", "")
    for comparison in outcome.race.comparisons:
        if ratios := outcome.ratios(comparison):
            middle = statistics.median(ratios)
            target = comparison.targets.get(outcome.model)
            table.add_row(
                f"{comparison.name} / {comparison.against}",
                f"{middle:.2f}",
                "{:.2f} – {:.2f}".format(*middle_half(ratios)),
                f"{outcome.ratio_of_best(comparison):.2f}",
                f"{outcome.ratio_of_costs(comparison):.2f}",
                _goal(comparison, outcome.model),
                "" if target is None else "reached" if middle >= target else "missed",
            )
    if table.row_count:
        console.print(table)
    for kind, reasons in (("absent", outcome.absent), ("failed", outcome.failed)):
        for name, reason in reasons.items():
            console.print(f"{kind}: {name}: {reason}", markup=False, highlight=False, soft_wrap=True)


def _goal(comparison: Comparison, model: str) -> str:
    goals = [f"≥ {comparison.targets[model]:g}"] if model in comparison.targets else []
    goals += [f"aim {comparison.aims[model]:g}"] if model in comparison.aims else []
    return ", ".join(goals)


def _threads(threads: int | None) -> str:
    return "default" if threads is None else str(threads)


def _trials(result: Result) -> str:
    """Format the number of threads, and the numbers that were tried."""
    others = [
        f"{_threads(threads)}: {rate:,.0f}"
        for threads, rate in result.tried.items()
        if threads != result.threads
    ]
    return _threads(result.threads) + (f" ({', '.join(others)})" if others else "")
