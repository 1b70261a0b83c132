"""The table of outcomes at the end of a run of drills."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

_WIDEST = 60
"""Characters of a problem in its row; all of it stands under the table."""


@dataclass(frozen=True)
class Outcome:
    """One round of one drill.

    Attributes:
        drill: What was broken.
        seconds: Time until everything was in order again.
        problem: What was wrong; None if the drill was survived.
        checked: What was checked.
        not_run: Why this machine could not run the drill; None if it could.
    """

    drill: str
    seconds: float
    problem: str | None = None
    checked: str = ""
    not_run: str | None = None


def show(outcomes: Iterable[Outcome], console: Console | None = None) -> bool:
    """Print a row per drill and the problems under it. Return whether all drills that were run were survived."""
    rows: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault(outcome.drill, []).append(outcome)
    table = Table(
        "drill", "rounds", "survived", "slowest", "what was checked", "first problem", title="Drills"
    )
    for drill, rounds in sorted(rows.items()):
        run = [outcome for outcome in rounds if outcome.not_run is None]
        survived = sum(outcome.problem is None for outcome in run)
        slowest = f"{max(outcome.seconds for outcome in run):.2f} s" if run else "-"
        table.add_row(drill, str(len(run)), str(survived), slowest, rounds[0].checked, _first_problem(rounds))
    console = console or Console()
    console.print(table, markup=False)
    problems = [outcome for rounds in rows.values() for outcome in rounds if outcome.problem]
    for outcome in problems:
        console.print(f"{outcome.drill}: {outcome.problem}", markup=False)
    return not problems


def _first_problem(rounds: list[Outcome]) -> str:
    for outcome in rounds:
        if outcome.problem is not None:
            line = outcome.problem.partition("\n")[0]
            return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 1]}…"
    not_run = next((outcome.not_run for outcome in rounds if outcome.not_run is not None), None)
    return f"not run: {not_run}" if not_run is not None else "none"
