"""Batches of any iterable: its elements stacked, read ahead by a thread, and shuffled in a buffer."""

import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np

from stratagem.data.batch_source import BatchOptions, BatchPosition, BatchSource
from stratagem.errors import DataError
from stratagem.runtime.exits import DAEMON_WORK

_CLOSE_SECONDS = 1.0


@dataclass(frozen=True, eq=False)
class StreamBatches(BatchSource):
    """Draws batches of a stream. The batches before a position are drawn too, and dropped.

    Args:
        stream: The elements.
        parse: Turns a stacked batch into the final one.
        options: How to make batches. They are neither shuffled nor read by processes.
    """

    stream: Iterable[Any]
    parse: Callable[[Any], Any] | None
    options: BatchOptions

    def draw(self, position: BatchPosition) -> Generator[Any, None, None]:
        rest = islice(self._groups(), position.batches, None)
        batches = (self._batch(group) for group in rest)
        if not self.options.prefetch:
            yield from batches
            return
        with closing(Prefetcher(batches, self.options.prefetch)) as ahead:
            yield from ahead

    def _groups(self) -> Iterator[list[Any]]:
        options = self.options
        for epoch in count() if options.epochs is None else range(options.epochs):
            if epoch and iter(self.stream) is self.stream:
                raise DataError(
                    f"a {type(self.stream).__name__} can be iterated only once, and epochs={options.epochs}; give something "
                    "that can be iterated again, such as read_tfrecord(...), or epochs=1"
                )
            own = islice(self.stream, options.shard_index, None, options.shard_count)
            group: list[Any] = []
            is_empty = True
            for element in own:
                is_empty = False
                group.append(element)
                if len(group) == options.batch_size:
                    yield group
                    group = []
            if group and not options.drop_remainder:
                yield group
            if is_empty:
                return  # or an empty stream would be looked at for ever

    def _batch(self, group: list[Any]) -> Any:
        batch = stack(group)
        return batch if self.parse is None else self.parse(batch)


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

    As in TensorFlow, a batch is drawn when `min_after_dequeue` elements remain in the buffer after it; a larger number
    shuffles better and takes longer to begin. When the stream has ended the rest is drawn. Unlike in TensorFlow, the
    order follows from the seed and the stream alone, not from the speed of threads: a batch is always drawn from
    `min_after_dequeue + batch_size` elements, and the rest of `capacity` is read ahead.

    An error of the stream is raised in place of the element at which it happened. The thread ends with the generator:
    when that is exhausted, closed or garbage-collected.

    Args:
        stream: Elements: arrays or numbers, and dicts, lists and tuples of these.
        batch_size: Elements per batch; the last batch may be smaller.
        capacity: How many elements to hold at most, at least `min_after_dequeue + batch_size`.
        min_after_dequeue: How many elements remain in the buffer.
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
    return _shuffled_batches(stream, batch_size, capacity, min_after_dequeue, seed, drop_remainder)


def _shuffled_batches(
    stream: Iterable[Any],
    batch_size: int,
    capacity: int,
    min_after_dequeue: int,
    seed: int | None,
    drop_remainder: bool,
) -> Generator[Any, None, None]:
    random = np.random.default_rng(seed)
    pool = min_after_dequeue + batch_size
    buffer: list[Any] = []
    ahead = Prefetcher(stream, max(1, capacity - pool))
    try:
        for element in ahead:
            buffer.append(element)
            if len(buffer) == pool:
                yield stack(_draw(buffer, batch_size, random))
        while len(buffer) >= (batch_size if drop_remainder else 1):
            yield stack(_draw(buffer, min(batch_size, len(buffer)), random))
    finally:
        ahead.close()


def _draw(buffer: list[Any], count: int, random: np.random.Generator) -> list[Any]:
    """Take random elements out of the buffer; the last element fills each gap."""
    elements = []
    for index in random.integers(0, np.arange(len(buffer), len(buffer) - count, -1)).tolist():
        buffer[index], buffer[-1] = buffer[-1], buffer[index]
        elements.append(buffer.pop())
    return elements


class Prefetcher:
    """Reads a stream ahead in a thread; errors of the stream are raised where they happened in it.

    Args:
        stream: What to read.
        ahead: How many elements to hold at most.
    """

    def __init__(self, stream: Iterable[Any], ahead: int) -> None:
        self._changed = threading.Condition()
        self._is_ending = sys.is_finalizing  # when that is true, this module may be gone
        self._elements: deque[Any] = deque()
        self._ahead = ahead
        self._is_closed = self._has_ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._read, args=(iter(stream),), name="stratagem-prefetch", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._elements or self._has_ended)
                if not self._elements:
                    break
                element = self._elements.popleft()
                self._changed.notify_all()
            yield element
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread; one that waits for the stream's next element ends when it has it."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if not self._is_ending():  # then threads are frozen, and end with the interpreter
            self._thread.join(_CLOSE_SECONDS)

    def _read(self, stream: Iterator[Any]) -> None:
        try:
            for element in _as_daemon_work(stream):
                with self._changed:
                    self._changed.wait_for(lambda: len(self._elements) < self._ahead or self._is_closed)
                    if self._is_closed:
                        break
                    self._elements.append(element)
                    self._changed.notify_all()
            if self._is_closed and hasattr(stream, "close"):
                stream.close()  # a generator's `finally` runs now, in the thread that ran the rest of it
        except BaseException as error:  # noqa: BLE001  raised again where the element is asked for
            self._error = error
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()


def _as_daemon_work(stream: Iterator[Any]) -> Iterator[Any]:
    """Yield the elements of a stream, made as work of a daemon thread: making them may use JAX."""
    while True:
        with DAEMON_WORK:
            try:
                element = next(stream)
            except StopIteration:
                return
        yield element


def stack(elements: Sequence[Any]) -> Any:
    """Stack elements, which are arrays or dicts, lists and tuples of them: the first axis is the batch.

    Example:
        >>> stack([{"x": 1, "y": (2.0, None)}, {"x": 3, "y": (4.0, None)}])
        {'x': array([1, 3]), 'y': (array([2., 4.]), None)}
    """
    return _stack(elements, "element")


def _stack(elements: Sequence[Any], path: str) -> Any:
    first = elements[0]
    other = next((element for element in elements if type(element) is not type(first)), None)
    if isinstance(first, Mapping | list | tuple | bytes | str | None) and other is not None:
        raise DataError(
            f"{path} is a {type(first).__name__} in one element of the stream and a {type(other).__name__} in "
            f"another; all elements of a batch have the same structure"
        )
    if first is None:
        return None
    if isinstance(first, Mapping):
        if any(element.keys() != first.keys() for element in elements):
            raise DataError(
                f"{path} does not have the same keys in all elements of the stream: {sorted(first)}"
            )
        return {key: _stack([element[key] for element in elements], f"{path}[{key!r}]") for key in first}
    if isinstance(first, list | tuple):
        if any(len(element) != len(first) for element in elements):
            raise DataError(f"{path} does not have {len(first)} parts in all elements of the stream")
        parts = [_stack(part, f"{path}[{at}]") for at, part in enumerate(zip(*elements, strict=True))]
        if hasattr(first, "_fields"):
            return type(first)(*parts)
        return type(first)(parts)
    if isinstance(first, bytes | str):  # NumPy's own strings lose trailing zero bytes
        return np.fromiter(elements, object, len(elements))
    arrays = [np.asarray(element) for element in elements]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise DataError(
            f"{path} has shapes {', '.join(map(str, sorted(shapes)))} in one batch; make them equal before batching"
        )
    return np.stack(arrays)
