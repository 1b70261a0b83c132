"""The status of a cluster, as `session.status()` returns it: as lines of text, and as figures for TensorBoard."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from stratagem.training.progress_display import rate_text
from stratagem.training.summary_values import Histogram, histogram_of_counts

Status: TypeAlias = Mapping[str, Mapping[str, Any]]
"""For each task what it reports of itself."""
_MOST_LINES = 16


def worker_lines(status: Status, earlier: Status | None = None) -> list[str]:
    """Return a line for each worker, with its speed since an earlier status, if there is one.

    Example:
        >>> model = {"global_step": 9, "active": ["/job:worker/task:0"], "waits_for": [], "dropped": {}}
        >>> tasks = {"/job:ps/task:0": {"parameters": {"m": model}}, "/job:worker/task:0": {}}
        >>> worker_lines(tasks)
        ['/job:worker/task:0: trains']
    """
    models = [
        model
        for report in status.values()
        for model in report.get("parameters", {}).values()
        if "global_step" in model  # server 0 reports for all servers
    ]
    speeds = worker_speeds(status, earlier)
    tasks = {*status, *(task for model in models for task in model.get("pushed", ()))}
    lines = []
    for task in sorted(tasks, key=_sort_key):
        if not task.startswith(("/job:worker/", "/job:chief/")):
            continue
        if "error" in status.get(task, {}):
            facts = ["does not answer"]
        elif any(task in model["waits_for"] for model in models):
            facts = ["waited for"]
        elif any(task in model["active"] for model in models):
            facts = ["trains"]
        else:
            facts = ["up"]
        if task in speeds:
            facts.append(f"{rate_text(speeds[task])} steps/s")
        dropped = sum(model["dropped"].get(task, 0) for model in models)
        if dropped:
            facts.append(f"{dropped} pushes dropped")
        lines.append(f"{task}: {', '.join(facts)}")
    more = len(lines) - _MOST_LINES
    return lines if more <= 0 else [*lines[:_MOST_LINES], f"and {more} more workers"]


def worker_speeds(status: Status, earlier: Status | None) -> dict[str, float]:
    """Return the steps per second of each worker between two statuses.

    Example:
        >>> def status(seconds, pushes):
        ...     model = {"global_step": 9, "pushed": {"/job:worker/task:0": pushes}}
        ...     return {"/job:ps/task:0": {"incarnation": "a", "seconds": seconds, "parameters": {"m": model}}}
        >>> worker_speeds(status(12.0, 30), status(10.0, 10))
        {'/job:worker/task:0': 10.0}
    """
    speeds: dict[str, float] = {}
    for task, report in status.items():
        before = _same_start((earlier or {}).get(task), report)
        if before is None:
            continue
        seconds = report.get("seconds", 0.0) - before.get("seconds", 0.0)
        for name, model in report.get("parameters", {}).items():
            old = before.get("parameters", {}).get(name, {}).get("pushed", {})
            for worker, pushes in model.get("pushed", {}).items():
                if worker in old and seconds > 0:
                    speeds[worker] = speeds.get(worker, 0.0) + (pushes - old[worker]) / seconds
    return speeds


def _same_start(before: Mapping[str, Any] | None, report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a task's earlier report, unless the task was started again since: then its counters began anew."""
    if before is None or before.get("incarnation") != report.get("incarnation"):
        return None
    return before


def _sort_key(task: str) -> tuple[str, int]:
    """Sort tasks by number, not by its digits."""
    job, _, index = task.rpartition(":")
    return job, int(index) if index.isdigit() else -1


class StatusFigures(NamedTuple):
    """Numbers and histograms by name. A name has only one of them, as TensorBoard demands."""

    scalars: dict[str, float]
    histograms: dict[str, Histogram]


def status_figures(status: Status, earlier: Status | None = None) -> StatusFigures:
    """Return the figures of all models and tasks: staleness, pushes dropped, and how much each task moves.

    With an earlier status, pushes and bytes are those in between, and there are rates.
    """
    figures = StatusFigures({}, {})
    for task, report in status.items():
        before = _same_start((earlier or {}).get(task), report)
        _add_models(figures, report, before)
        _add_task(figures, task, report, before)
    for worker, speed in worker_speeds(status, earlier).items():
        figures.scalars[f"workers{worker}/steps_per_second"] = speed
    return figures


def _add_models(figures: StatusFigures, report: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
    for name, model in report.get("parameters", {}).items():
        if "global_step" not in model:  # server 0 reports for all servers
            continue
        old = ((before or {}).get("parameters") or {}).get(name, {})
        group = f"servers/{name}"
        figures.scalars[f"{group}/global_step"] = model["global_step"]
        figures.scalars[f"{group}/workers"] = len(model["active"])
        for worker, count in model["dropped"].items():
            figures.scalars[f"{group}/dropped/{worker.strip('/')}"] = count
        counts = {
            int(steps): count - old.get("staleness", {}).get(steps, 0)
            for steps, count in model["staleness"].items()
        }
        pushes = sum(counts.values())
        if pushes > 0 and min(counts.values()) >= 0:
            mean = sum(steps * count for steps, count in counts.items()) / pushes
            figures.scalars[f"{group}/staleness"] = mean
            figures.histograms[f"{group}/staleness_histogram"] = histogram_of_counts(counts)
        seconds = _seconds_between(report, before)
        if old and seconds > 0:
            rate = (model["global_step"] - old["global_step"]) / seconds
            figures.scalars[f"{group}/updates_per_second"] = rate


def _add_task(
    figures: StatusFigures, task: str, report: Mapping[str, Any], before: Mapping[str, Any] | None
) -> None:
    seconds = _seconds_between(report, before)
    if before is None or seconds <= 0:
        return
    group = f"tasks{task}"
    for name in ("bytes_in", "bytes_out"):
        figures.scalars[f"{group}/{name}_per_second"] = (report[name] - before[name]) / seconds
    calls = sum(report["calls"].values()) - sum(before["calls"].values())
    figures.scalars[f"{group}/calls_per_second"] = calls / seconds


def _seconds_between(report: Mapping[str, Any], before: Mapping[str, Any] | None) -> float:
    if before is None or "seconds" not in report or "seconds" not in before:
        return 0.0
    return float(report["seconds"] - before["seconds"])
