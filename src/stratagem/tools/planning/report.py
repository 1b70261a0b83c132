"""A plan as a table, and as plain values."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Column, Table

from stratagem.tools.planning.advice import advise, best_of
from stratagem.tools.planning.capacity import Line
from stratagem.tools.planning.figures import Figures
from stratagem.tools.planning.units import show_count


def table(lines: Sequence[Line]) -> Table:
    """One row for each number of workers and rule; the best of each number is bold."""
    counts_examples = any(line.examples_per_second is not None for line in lines)
    has_failures = any(line.useful < 1 for line in lines)
    numbers = [
        "servers",
        "steps/s",
        *(["examples/s"] if counts_examples else []),
        "effic.",
        "stale",
        "p99",
        "drop",
        "wait",
        *(["fail"] if has_failures else []),
    ]
    made = Table(
        Column("workers", justify="right", no_wrap=True, min_width=7),
        Column("rule", no_wrap=True, min_width=10),
        *(Column(name, justify="right", no_wrap=True, min_width=len(name)) for name in numbers),
        Column("busiest", min_width=8),  # the one that may take two lines
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    before = None
    for line in lines:
        is_best = line is best_of([other for other in lines if other.workers == line.workers])
        found = line.simulated
        examples = line.examples_per_second
        made.add_row(
            "" if line.workers == before else str(line.workers),
            line.label,
            str(line.servers or "–"),
            show_count(line.updates_per_second),
            *([show_count(examples) if examples is not None else "–"] if counts_examples else []),
            f"{line.efficiency:.0%}",
            show_count(found.mean_staleness),
            str(found.p99_staleness),
            f"{found.dropped:.1%}" if found.dropped else "–",
            f"{found.waiting:.0%}",
            *([f"−{1 - line.useful:.1%}"] if has_failures else []),
            f"{found.busiest} {found.busy[found.busiest]:.0%}",
            style="bold" if is_best else None,
        )
        before = line.workers
    return made


def plain(figures: Figures, lines: Sequence[Line]) -> dict[str, Any]:
    """The same for machines: what was assumed, what was found, and the advice."""
    return {
        "figures": _finite({**asdict(figures), "stragglers": str(figures.stragglers)}),
        "plan": [_plain_line(line) for line in lines],
        "advice": advise(lines),
    }


def _plain_line(line: Line) -> dict[str, Any]:
    found = line.simulated
    return {
        "workers": line.workers,
        "rule": line.rule,
        "label": line.label,
        "servers": line.servers,
        "steps_per_second": line.updates_per_second,
        "gradients_per_second": line.gradients_per_second,
        "examples_per_second": line.examples_per_second,
        "efficiency": line.efficiency,
        "mean_staleness": found.mean_staleness,
        "p99_staleness": found.p99_staleness,
        "dropped": found.dropped,
        "waiting": found.waiting,
        "round_trip": found.round_trip,
        "useful": line.useful,
        "busiest": found.busiest,
        "busy": found.busy,
        "half_width": found.half_width,
        "pushes_simulated": found.pushes,
    }


def _finite(value: Any) -> Any:
    """The same with `None` for what is infinite: JSON has no word for it."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return None if value == float("inf") else value
