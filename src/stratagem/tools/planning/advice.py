"""What a plan comes to, in sentences."""

from collections.abc import Sequence
from itertools import pairwise

from stratagem.tools.planning.capacity import Line
from stratagem.tools.planning.simulated import SERVER_LINK, SERVER_UPDATE, WORKER_LINK
from stratagem.tools.planning.units import show_count

_PREFERRED = ("all-reduce", "sync", "backup", "bounded", "async", "overlap")
"""At about the same speed: first what computes as one machine does, then what loses least of that."""
_ABOUT = 0.25
"""So much slower than the quickest still counts as the same speed: fresh gradients are worth more than stale ones."""
_HARDLY = 0.5
_WAITING = "waiting"
_REASONS = {
    WORKER_LINK: "the workers' links are in use {:.0%} of the time: a faster network, or larger batches, would help",
    SERVER_LINK: "the servers' links are in use {:.0%} of the time: a faster network, or larger batches, would help",
    SERVER_UPDATE: "server 0 is at work {:.0%} of the time: larger batches, and so fewer pushes, would help",
    _WAITING: "the workers wait for each other {:.0%} of the time: backup workers, or a rule that waits less, would help",
}


def best_of(lines: Sequence[Line]) -> Line:
    """The line to choose among those of one number of workers."""
    quickest = max(line.gradients_per_second for line in lines)
    alike = [line for line in lines if line.gradients_per_second >= quickest * (1 - _ABOUT)]
    return min(alike, key=lambda line: _PREFERRED.index(line.rule))


def advise(lines: Sequence[Line]) -> list[str]:
    """Which rule fits which numbers of workers, and from where on more workers hardly help."""
    counts = sorted({line.workers for line in lines})
    chosen = [best_of([line for line in lines if line.workers == count]) for count in counts]
    groups: list[list[Line]] = []
    for line in chosen:
        if groups and groups[-1][-1].rule == line.rule:
            groups[-1].append(line)
        else:
            groups.append([line])
    return [*(_sentence(group) for group in groups), *_limit(chosen)]


def _sentence(group: Sequence[Line]) -> str:
    first, last = group[0], group[-1]
    who = _workers(last.workers)
    if first is not last:
        who = f"{first.workers} to {last.workers} workers"
    servers = f" and {last.servers} parameter server{'s' * (last.servers > 1)}" if last.servers else ""
    at = f" with {last.workers}" if first is not last else ""
    said = (
        f"{who}: {last.label}{servers} fits best, {show_count(last.updates_per_second)} steps/s{at} at "
        f"{last.efficiency:.0%} of what as many workers by themselves would compute"
    )
    if last.simulated.mean_staleness >= 1:
        said += (
            f"; its gradients are {show_count(last.simulated.mean_staleness)} steps stale on average, so lower the "
            "learning rate"
        )
    if last.simulated.dropped >= 0.01:
        said += f"; {last.simulated.dropped:.0%} of the gradients are dropped"
    return f"{said}."


def _limit(chosen: Sequence[Line]) -> list[str]:
    """From where on a worker more adds less than half of what it computes by itself, and why."""
    for before, after in pairwise(chosen):
        gain = after.gradients_per_second - before.gradients_per_second
        if gain < _HARDLY * (after.workers - before.workers) * after.alone:
            busy = {**after.simulated.busy, _WAITING: after.simulated.waiting}
            reason = max(_REASONS, key=lambda name: busy.get(name, 0.0))
            why = _REASONS[reason].format(busy[reason])
            return [
                f"Beyond {_workers(before.workers)}, each adds less than half of what it computes; with {after.workers}, {why}."
            ]
    return []


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
