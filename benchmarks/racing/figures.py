"""Medians and quartiles of rounds, and the ends of what processes said."""

import statistics
from collections.abc import Sequence


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the spread of rounds."""
    low, high = middle_half(values)
    return {
        "median": statistics.median(values),
        "lower quartile": low,
        "upper quartile": high,
        "best": max(values),
    }


def middle_half(values: Sequence[float]) -> tuple[float, float]:
    """Return the lower and the upper quartile of rounds."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def first_and_last_line(text: str) -> str:
    """Return what happened and, from the end of a traceback, what was wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if len(lines) <= 1 else f"{lines[0]} … {lines[-1]}"
