"""How a training stands, in words: the same in a bar and in lines."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stratagem.training.pace import Pace


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
    if pace.steps == pace.total:
        parts.append(f"{clock(pace.seconds)} in all")
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


def worker_lines(status: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line per worker that the status of a cluster tells of.

    Args:
        status: What `session.status()` returned.

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
    lines = []
    for task, said in status.items():
        if not task.startswith(("/job:worker/", "/job:chief/")):
            continue
        if "error" in said:
            parts = ["does not answer"]
        elif any(task in model["waits_for"] for model in models):
            parts = ["waited for"]
        elif any(task in model["active"] for model in models):
            parts = ["trains"]
        else:
            parts = ["up"]
        dropped = sum(model["dropped"].get(task, 0) for model in models)
        if dropped:
            parts.append(f"{dropped} pushes dropped")
        lines.append(f"{task}: {', '.join(parts)}")
    return lines


def _is_number(value: Any) -> bool:
    array = np.asarray(value)
    return array.size == 1 and (array.dtype.kind in "biuf" or array.dtype.name in ("bfloat16", "float16"))


def _short(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"
