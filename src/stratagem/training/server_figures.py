"""What the status of a cluster comes to in figures: staleness, pushes dropped, and how much each task moves."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from stratagem.training.histograms import Histogram, histogram_of_counts
from stratagem.training.standing import Status, worker_speeds


class Figures(NamedTuple):
    """Numbers and histograms, by name; a name is one or the other, as TensorBoard wants it."""

    scalars: dict[str, float]
    histograms: dict[str, Histogram]


def server_figures(now: Status, earlier: Status | None = None) -> Figures:
    """Figures of all models and tasks that `session.status()` tells of.

    Args:
        now: What it told.
        earlier: What it told the last time: then pushes and bytes are those in between, and there are rates.
    """
    found = Figures({}, {})
    for task, said in now.items():
        before = (earlier or {}).get(task)
        if before is not None and before.get("incarnation") != said.get("incarnation"):
            before = None  # it was started again, and counts anew
        _of_models(found, said, before)
        _of_task(found, task, said, before)
    for worker, speed in worker_speeds(now, earlier).items():
        found.scalars[f"workers{worker}/steps_per_second"] = speed
    return found


def _of_models(found: Figures, said: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
    for name, model in said.get("parameters", {}).items():
        if "global_step" not in model:  # the one server that leads tells of all
            continue
        old = ((before or {}).get("parameters") or {}).get(name, {})
        group = f"servers/{name}"
        found.scalars[f"{group}/global_step"] = model["global_step"]
        found.scalars[f"{group}/workers"] = len(model["active"])
        for worker, count in model["dropped"].items():
            found.scalars[f"{group}/dropped/{worker.strip('/')}"] = count
        counts = {
            int(steps): count - old.get("staleness", {}).get(steps, 0)
            for steps, count in model["staleness"].items()
        }
        pushes = sum(counts.values())
        if pushes > 0 and min(counts.values()) >= 0:
            mean = sum(steps * count for steps, count in counts.items()) / pushes
            found.scalars[f"{group}/staleness"] = mean
            found.histograms[f"{group}/staleness_histogram"] = histogram_of_counts(counts)
        seconds = _seconds(said, before)
        if old and seconds > 0:
            rate = (model["global_step"] - old["global_step"]) / seconds
            found.scalars[f"{group}/updates_per_second"] = rate


def _of_task(found: Figures, task: str, said: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
    seconds = _seconds(said, before)
    if before is None or seconds <= 0:
        return
    group = f"tasks{task}"
    for name in ("bytes_in", "bytes_out"):
        found.scalars[f"{group}/{name}_per_second"] = (said[name] - before[name]) / seconds
    calls = sum(said["calls"].values()) - sum(before["calls"].values())
    found.scalars[f"{group}/calls_per_second"] = calls / seconds


def _seconds(said: Mapping[str, Any], before: Mapping[str, Any] | None) -> float:
    if before is None or "seconds" not in said or "seconds" not in before:
        return 0.0
    return float(said["seconds"] - before["seconds"])
