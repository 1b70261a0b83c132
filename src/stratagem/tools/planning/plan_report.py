"""A plan as advice in sentences, as a table, and as plain values for JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from rich.table import Column, Table

from stratagem.tools.planning.capacity import PlanRow
from stratagem.tools.planning.job_profile import JobProfile
from stratagem.tools.planning.simulation import SERVER_LINK, SERVER_UPDATE, WORKER_LINK
from stratagem.tools.planning.units import show_count

_PREFERRED = ("all-reduce", "sync", "backup", "bounded", "async", "overlap")
"""At about the same speed: first the rules that compute what one machine would, then those that deviate least."""
_ABOUT = 0.25
"""A rule slower than the fastest by up to this share counts as equally fast: fresh gradients are worth more than stale ones."""
_HARDLY = 0.5
_WAITING = "waiting"
_REASONS = {
    WORKER_LINK: "the workers' links are in use {:.0%} of the time: a faster network, or larger batches, would help",
    SERVER_LINK: "the servers' links are in use {:.0%} of the time: a faster network, or larger batches, would help",
    SERVER_UPDATE: "server 0 is at work {:.0%} of the time: larger batches, and so fewer pushes, would help",
    _WAITING: "the workers wait for each other {:.0%} of the time: backup workers, or a rule that waits less, would help",
}


def best_row(rows: Sequence[PlanRow]) -> PlanRow:
    """Return the row to choose among those of one number of workers."""
    fastest = max(row.gradients_per_second for row in rows)
    candidates = [row for row in rows if row.gradients_per_second >= fastest * (1 - _ABOUT)]
    return min(candidates, key=lambda row: _PREFERRED.index(row.rule_name))


def advise(rows: Sequence[PlanRow]) -> list[str]:
    """Return sentences: which rule fits which numbers of workers, and from which number on more hardly help."""
    counts = sorted({row.workers for row in rows})
    best_rows = [best_row([row for row in rows if row.workers == count]) for count in counts]
    groups: list[list[PlanRow]] = []
    for row in best_rows:
        if groups and groups[-1][-1].rule_name == row.rule_name:
            groups[-1].append(row)
        else:
            groups.append([row])
    return [*(_recommendation(group) for group in groups), *_limit(best_rows)]


def _recommendation(group: Sequence[PlanRow]) -> str:
    first, last = group[0], group[-1]
    who = _workers(last.workers)
    if first is not last:
        who = f"{first.workers} to {last.workers} workers"
    servers = f" and {last.servers} parameter server{'s' * (last.servers > 1)}" if last.servers else ""
    at = f" with {last.workers}" if first is not last else ""
    sentence = (
        f"{who}: {last.label}{servers} fits best, {show_count(last.updates_per_second)} steps/s{at} at "
        f"{last.efficiency:.0%} of what as many workers by themselves would compute"
    )
    if last.simulated.mean_staleness >= 1:
        sentence += (
            f"; its gradients are {show_count(last.simulated.mean_staleness)} steps stale on average, so lower the "
            "learning rate"
        )
    if last.simulated.dropped >= 0.01:
        sentence += f"; {last.simulated.dropped:.0%} of the gradients are dropped"
    return f"{sentence}."


def _limit(best_rows: Sequence[PlanRow]) -> list[str]:
    """Return from which number on a further worker adds less than half of its own pace, and why."""
    for before, after in pairwise(best_rows):
        gain = after.gradients_per_second - before.gradients_per_second
        if gain < _HARDLY * (after.workers - before.workers) * after.single_worker_pace:
            busy = {**after.simulated.busy, _WAITING: after.simulated.waiting}
            reason = max(_REASONS, key=lambda name: busy.get(name, 0.0))
            why = _REASONS[reason].format(busy[reason])
            return [
                f"Beyond {_workers(before.workers)}, each adds less than half of what it computes; with {after.workers}, {why}."
            ]
    return []


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def plan_table(rows: Sequence[PlanRow]) -> Table:
    """Return a table with a row for each number of workers and rule; the best of each number is bold."""
    counts_examples = any(row.examples_per_second is not None for row in rows)
    has_failures = any(row.useful < 1 for row in rows)
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
    table = Table(
        Column("workers", justify="right", no_wrap=True, min_width=7),
        Column("rule", no_wrap=True, min_width=10),
        *(Column(name, justify="right", no_wrap=True, min_width=len(name)) for name in numbers),
        Column("busiest", min_width=8),  # the only column that may wrap
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    workers_above = None
    for row in rows:
        is_best = row is best_row([other for other in rows if other.workers == row.workers])
        result = row.simulated
        examples = row.examples_per_second
        table.add_row(
            "" if row.workers == workers_above else str(row.workers),
            row.label,
            str(row.servers or "–"),
            show_count(row.updates_per_second),
            *([show_count(examples) if examples is not None else "–"] if counts_examples else []),
            f"{row.efficiency:.0%}",
            show_count(result.mean_staleness),
            str(result.p99_staleness),
            f"{result.dropped:.1%}" if result.dropped else "–",
            f"{result.waiting:.0%}",
            *([f"−{1 - row.useful:.1%}"] if has_failures else []),
            f"{result.busiest} {result.busy[result.busiest]:.0%}",
            style="bold" if is_best else None,
        )
        workers_above = row.workers
    return table


def plain_plan(profile: JobProfile, rows: Sequence[PlanRow]) -> dict[str, Any]:
    """Return the plan as plain values: the figures that it starts from, its rows, and the advice."""
    return {
        "figures": _without_infinity({**asdict(profile), "stragglers": str(profile.stragglers)}),
        "plan": [_plain_row(row) for row in rows],
        "advice": advise(rows),
    }


def _plain_row(row: PlanRow) -> dict[str, Any]:
    result = row.simulated
    return {
        "workers": row.workers,
        "rule": row.rule_name,
        "label": row.label,
        "servers": row.servers,
        "steps_per_second": row.updates_per_second,
        "gradients_per_second": row.gradients_per_second,
        "examples_per_second": row.examples_per_second,
        "efficiency": row.efficiency,
        "mean_staleness": result.mean_staleness,
        "p99_staleness": result.p99_staleness,
        "dropped": result.dropped,
        "waiting": result.waiting,
        "round_trip": result.round_trip,
        "useful": row.useful,
        "busiest": result.busiest,
        "busy": result.busy,
        "half_width": result.half_width,
        "pushes_simulated": result.pushes,
    }


def _without_infinity(value: Any) -> Any:
    """Return the value with `None` for infinity, which JSON cannot express."""
    if isinstance(value, dict):
        return {key: _without_infinity(each) for key, each in value.items()}
    return None if value == float("inf") else value
