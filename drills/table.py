"""The table that a run of drills ends with."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Outcome:
    """One round of one drill.

    Attributes:
        drill: What was broken.
        seconds: How long it took until all was as it should be.
        problem: What was not as it should be; None when the drill was survived.
    """

    drill: str
    seconds: float
    problem: str | None = None


def show(outcomes: Iterable[Outcome]) -> bool:
    """Print a row per drill and the problems under it; whether all were survived."""
    rows: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault(outcome.drill, []).append(outcome)
    table = Table("drill", "rounds", "survived", "slowest", title="Drills")
    for drill, rounds in sorted(rows.items()):
        survived = sum(outcome.problem is None for outcome in rounds)
        slowest = max(outcome.seconds for outcome in rounds)
        table.add_row(drill, str(len(rounds)), str(survived), f"{slowest:.2f} s")
    console = Console()
    console.print(table)
    problems = [outcome for rounds in rows.values() for outcome in rounds if outcome.problem]
    for outcome in problems:
        console.print(f"{outcome.drill}: {outcome.problem}", markup=False)
    return not problems
