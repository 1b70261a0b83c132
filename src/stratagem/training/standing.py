"""How a training stands, in words: the same in a bar and in lines."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stratagem.training.pace import Pace

Status = Mapping[str, Mapping[str, Any]]
_MOST_LINES = 16


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are single numbers, the loss first.

    Example:
        >>> numbers({"accuracy": np.float32(0.5), "loss": 2, "spread": np.zeros(3)})
        {'loss': 2.0, 'accuracy': 0.5}
    """
    names = sorted(metrics, key=lambda name: name != "loss")
    return {name: float(np.asarray(metrics[name]).reshape(())) for name in names if _is_number(metrics[name])}


def are_ready(metrics: Mapping[str, Any]) -> bool:
    """Whether they can be read without waiting for a device."""
    return all(value.is_ready() for value in metrics.values() if hasattr(value, "is_ready"))


def count(pace: Pace) -> str:
    """How many steps of how many.

    Example:
        >>> count(Pace(0.0, total=600))
        'step 0/600'
    """
    return f"step {pace.steps}" if pace.total is None else f"step {pace.steps}/{pace.total}"


def details(pace: Pace, metrics: Mapping[str, float], unit: str = "examples/s") -> str:
    """The metrics, the speed and the time left.

    Example:
        >>> pace = Pace(0.0, total=12)
        >>> for second in (5.0, 6.0, 7.0):
        ...     pace.count(second, examples=100)
        >>> details(pace, {"loss": 0.25, "global_step": 7.0})
        'loss 0.25, global step 7, 1 steps/s, 100 examples/s, 0:09 left'
    """
    parts = [f"{name.replace('_', ' ')} {_short(value)}" for name, value in metrics.items()]
    if pace.steps_per_second is not None:
        parts.append(f"{_rate(pace.steps_per_second)} steps/s")
    if pace.examples_per_second is not None:
        parts.append(f"{_rate(pace.examples_per_second)} {unit}")
    if pace.total is not None and (pace.is_over or pace.steps == pace.total):
        since = f"since step {pace.resumed_at}" if pace.resumed_at else "in all"
        parts.append(f"{clock(pace.seconds)} {since}")
    elif pace.seconds_left is not None:
        parts.append(f"{clock(pace.seconds_left)} left")
    return ", ".join(parts)


def clock(seconds: float) -> str:
    """A duration.

    Example:
        >>> clock(9), clock(3725)
        ('0:09', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def worker_lines(status: Status, earlier: Status | None = None) -> list[str]:
    """A line per worker that the status of a cluster tells of.

    Args:
        status: What `session.status()` or `strategy.status()` returned.
        earlier: What it returned before: then there is the speed of each.

    Example:
        >>> model = {"global_step": 9, "active": ["/job:worker/task:0"], "waits_for": [], "dropped": {}}
        >>> tasks = {"/job:ps/task:0": {"parameters": {"m": model}}, "/job:worker/task:0": {}}
        >>> worker_lines(tasks)
        ['/job:worker/task:0: trains']
    """
    models = [
        model
        for said in status.values()
        for model in said.get("parameters", {}).values()
        if "global_step" in model  # the one server that leads tells of all
    ]
    speeds = worker_speeds(status, earlier)
    known = {*status, *(task for model in models for task in model.get("pushed", ()))}
    lines = []
    for task in sorted(known, key=_place):
        if not task.startswith(("/job:worker/", "/job:chief/")):
            continue
        if "error" in status.get(task, {}):
            parts = ["does not answer"]
        elif any(task in model["waits_for"] for model in models):
            parts = ["waited for"]
        elif any(task in model["active"] for model in models):
            parts = ["trains"]
        else:
            parts = ["up"]
        if task in speeds:
            parts.append(f"{_rate(speeds[task])} steps/s")
        dropped = sum(model["dropped"].get(task, 0) for model in models)
        if dropped:
            parts.append(f"{dropped} pushes dropped")
        lines.append(f"{task}: {', '.join(parts)}")
    more = len(lines) - _MOST_LINES
    return lines if more <= 0 else [*lines[:_MOST_LINES], f"and {more} more workers"]


def worker_speeds(status: Status, earlier: Status | None) -> dict[str, float]:
    """Steps per second of each worker between two times that the status of a cluster was told.

    Example:
        >>> def told(seconds, pushes):
        ...     model = {"global_step": 9, "pushed": {"/job:worker/task:0": pushes}}
        ...     return {"/job:ps/task:0": {"incarnation": "a", "seconds": seconds, "parameters": {"m": model}}}
        >>> worker_speeds(told(12.0, 30), told(10.0, 10))
        {'/job:worker/task:0': 10.0}
    """
    speeds: dict[str, float] = {}
    for task, said in status.items():
        before = (earlier or {}).get(task)
        if before is None or before.get("incarnation") != said.get("incarnation"):
            continue  # it was started again, and counts anew
        seconds = said.get("seconds", 0.0) - before.get("seconds", 0.0)
        for name, model in said.get("parameters", {}).items():
            old = before.get("parameters", {}).get(name, {}).get("pushed", {})
            for worker, pushes in model.get("pushed", {}).items():
                if worker in old and seconds > 0:
                    speeds[worker] = speeds.get(worker, 0.0) + (pushes - old[worker]) / seconds
    return speeds


def _place(task: str) -> tuple[str, int]:
    """Workers by number, not by the digits of it."""
    job, _, index = task.rpartition(":")
    return job, int(index) if index.isdigit() else -1


def _is_number(value: Any) -> bool:
    array = np.asarray(value)
    return array.size == 1 and (array.dtype.kind in "biuf" or array.dtype.name in ("bfloat16", "float16"))


def _short(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"
