"""How values are spread: the buckets that a histogram in a summary is made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stratagem.errors import DataError

BUCKETS = 64


@dataclass(frozen=True)
class Histogram:
    """Counts of values in buckets.

    Attributes:
        limits: The upper limit of each bucket.
        counts: How many values are in each.
        minimum: The smallest value.
        maximum: The largest.
        total: The sum of the values.
        squares: The sum of their squares.
        not_finite: How many more values there were that are no numbers or infinite.
    """

    limits: tuple[float, ...]
    counts: tuple[float, ...]
    minimum: float
    maximum: float
    total: float
    squares: float
    not_finite: int = 0


def histogram_of(values: Any) -> Histogram:
    """Count values of any shape in buckets of equal width.

    Example:
        >>> spread = histogram_of([0.0, 1.0, 1.0, float("nan")])
        >>> sum(spread.counts), spread.maximum, spread.not_finite
        (3.0, 1.0, 1)
    """
    array = np.asarray(values).reshape(-1)
    try:
        numbers = array.astype(np.float64)
    except (TypeError, ValueError):
        raise DataError(f"a histogram of {array.dtype} values; give numbers") from None
    finite = numbers[np.isfinite(numbers)]
    missing = len(numbers) - len(finite)
    if not len(finite):
        return Histogram((), (), 0.0, 0.0, 0.0, 0.0, missing)
    low, high = float(finite.min()), float(finite.max())
    width = high / BUCKETS - low / BUCKETS
    if width > np.spacing(max(-low, high)) and np.isfinite(high - low):
        counts, edges = np.histogram(finite, BUCKETS, (low, high))
        limits = edges[1:]
    else:  # no width that floating point could divide
        limits, counts = np.array([high]), np.array([len(finite)])
    with np.errstate(over="ignore"):
        total, squares = float(finite.sum()), float(np.square(finite).sum())
    return Histogram(
        tuple(limits.tolist()),
        tuple(counts.astype(np.float64).tolist()),
        low,
        high,
        total,
        squares,
        missing,
    )


def histogram_of_counts(counts: Mapping[int, int]) -> Histogram:
    """The same for whole numbers that have been counted already: a bucket for each number.

    Example:
        >>> histogram_of_counts({0: 9, 2: 1}).counts
        (9.0, 0.0, 1.0)
    """
    present = {number: count for number, count in counts.items() if count > 0}
    if not present:
        return Histogram((), (), 0.0, 0.0, 0.0, 0.0)
    low, high = min(present), max(present)
    numbers = range(low, high + 1)
    return Histogram(
        tuple(number + 0.5 for number in numbers),
        tuple(float(present.get(number, 0)) for number in numbers),
        low,
        high,
        float(sum(number * count for number, count in present.items())),
        float(sum(number * number * count for number, count in present.items())),
    )
