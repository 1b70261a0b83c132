"""A shuffled order of any length, of which any part can be had at once and without memory for the whole. Pure.

A Feistel network over the rows and columns of a square permutes a few numbers more than there are; what falls beyond
the length is permuted again until it does not.
"""

import math

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 3


def permuted(places: NDArray[np.int64], length: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    """Which elements stand at these places of a shuffled order.

    Args:
        places: Numbers from 0 to `length - 1`.
        length: How many elements there are.
        seed: The same numbers give the same order.

    Example:
        >>> order = permuted(np.arange(10), 10, seed=(1, 0))
        >>> sorted(order.tolist()) == list(range(10)), bool(order[3] == permuted(np.array([3]), 10, seed=(1, 0))[0])
        (True, True)
    """
    # The numbers below columns * rows, of which few are not below the length.
    columns = np.uint64(math.isqrt(max(1, length) - 1) + 1)
    rows = np.uint64(-(-max(1, length) // int(columns)))
    keys = np.random.SeedSequence(seed).generate_state(2 * _ROUNDS, np.uint64)
    found = places.astype(np.uint64)
    outside = np.arange(len(found))
    while len(outside):
        row, column = np.divmod(found[outside], columns)
        for first, second in keys.reshape(_ROUNDS, 2):
            column = (column + _mixed(row + first) % columns) % columns
            row = (row + _mixed(column + second) % rows) % rows
        found[outside] = row * columns + column
        outside = outside[found[outside] >= length]
    return found.astype(np.int64)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of a value depends on all of its bits (the last step of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
