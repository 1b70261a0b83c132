"""Shuffled batches from a stream that is too long to be shuffled whole."""

from collections.abc import Generator, Iterable
from typing import Any

import numpy as np

from stratagem.data.prefetching import Prefetched
from stratagem.data.stacking import stack
from stratagem.errors import DataError


def shuffle_batch(
    stream: Iterable[Any],
    batch_size: int,
    capacity: int,
    min_after_dequeue: int,
    seed: int | None = None,
    *,
    drop_remainder: bool = False,
) -> Generator[Any, None, None]:
    """Draw batches of random elements from a buffer that a thread keeps filled from a stream.

    As TensorFlow's: a batch is drawn when `min_after_dequeue` elements remain in the buffer after it; more of
    them shuffle better and take longer to begin. When the stream has ended the rest is drawn. Unlike
    TensorFlow's, the order follows from the seed and the stream alone, not from how fast threads run: a batch is
    always drawn from `min_after_dequeue + batch_size` elements, and what capacity there is beyond is read ahead.

    An error of the stream is raised where the element is needed that it was raised for. The thread ends with the
    generator: when that is exhausted, closed or forgotten.

    Args:
        stream: Elements: arrays or numbers, and dicts, lists and tuples of these.
        batch_size: Elements per batch; the last batch may be smaller.
        capacity: How many elements to hold at most, at least `min_after_dequeue + batch_size`.
        min_after_dequeue: How many elements remain to draw from.
        seed: The same seed gives the same batches.
        drop_remainder: Leave out a last batch that is smaller.

    Example:
        >>> batches = shuffle_batch(range(5), batch_size=2, capacity=8, min_after_dequeue=2, seed=0)
        >>> sorted(int(x) for batch in batches for x in batch)
        [0, 1, 2, 3, 4]
    """
    if batch_size < 1 or min_after_dequeue < 0:
        raise DataError(
            f"batch_size={batch_size}, min_after_dequeue={min_after_dequeue}; give at least 1 and at least 0"
        )
    if capacity < min_after_dequeue + batch_size:
        raise DataError(
            f"capacity={capacity} cannot hold a batch of {batch_size} beside the {min_after_dequeue} that remain; "
            f"give at least {min_after_dequeue + batch_size}"
        )
    return _batches(stream, batch_size, capacity, min_after_dequeue, seed, drop_remainder)


def _batches(
    stream: Iterable[Any],
    batch_size: int,
    capacity: int,
    min_after_dequeue: int,
    seed: int | None,
    drop_remainder: bool,
) -> Generator[Any, None, None]:
    random = np.random.default_rng(seed)
    drawn_from = min_after_dequeue + batch_size
    buffer: list[Any] = []
    ahead = Prefetched(stream, max(1, capacity - drawn_from))
    try:
        for element in ahead:
            buffer.append(element)
            if len(buffer) == drawn_from:
                yield stack(_draw(buffer, batch_size, random))
        while len(buffer) >= (batch_size if drop_remainder else 1):
            yield stack(_draw(buffer, min(batch_size, len(buffer)), random))
    finally:
        ahead.close()


def _draw(buffer: list[Any], count: int, random: np.random.Generator) -> list[Any]:
    """Take random elements out of the buffer; the last one fills each gap."""
    drawn = []
    for place in random.integers(0, np.arange(len(buffer), len(buffer) - count, -1)).tolist():
        buffer[place], buffer[-1] = buffer[-1], buffer[place]
        drawn.append(buffer.pop())
    return drawn
