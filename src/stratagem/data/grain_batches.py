"""Batches of numbered rows: all rows shuffled, begun anywhere, and read ahead by Grain's threads or processes."""

import math
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratagem.data.batch_source import BatchOptions, BatchPosition, BatchSource
from stratagem.data.numbered_rows import NumberedRows
from stratagem.errors import MissingExtra

_ROUNDS = 3


@dataclass(frozen=True, eq=False)
class _ReadBatch:
    """Turns the number of a batch into the batch: chooses its rows, reads and parses them."""

    source: NumberedRows
    rows: int
    per_epoch: int
    parse: Callable[[Any], Any] | None
    options: BatchOptions

    def __call__(self, number: Any) -> Any:
        epoch, index = divmod(int(number), self.per_epoch)
        size = self.options.batch_size
        numbers = np.arange(index * size, min((index + 1) * size, self.rows))
        if self.options.shuffle_seed is not None:
            numbers = permute(numbers, self.rows, (self.options.shuffle_seed, epoch))
        batch = self.source.take(numbers * self.options.shard_count + self.options.shard_index)
        return batch if self.parse is None else self.parse(batch)


class GrainBatches(BatchSource):
    """Draws batches of rows.

    Args:
        rows: The rows.
        parse: Turns a batch of rows into the final one.
        options: How to make batches.

    Attributes:
        rows: The number of rows in this shard.
    """

    def __init__(self, rows: NumberedRows, parse: Callable[[Any], Any] | None, options: BatchOptions) -> None:
        try:
            import grain
        except ImportError as error:
            raise MissingExtra(
                f"a pipeline over files, arrays or sequences needs grain ({error}); install it: "
                "pip install 'stratagem[data]'; any other iterable needs no grain"
            ) from error
        self._options = options
        self.rows = len(range(options.shard_index, len(rows), options.shard_count))
        batches, smaller = divmod(self.rows, options.batch_size)
        self.per_epoch: int = batches + (smaller > 0 and not options.drop_remainder)
        self.per_pass = None if options.epochs is None else self.per_epoch * options.epochs
        # Grain makes whole batches: for single rows, its bookkeeping takes longer than reading does.
        self._endless = grain.MapDataset.range(sys.maxsize).map(
            _ReadBatch(rows, self.rows, self.per_epoch, parse, options)
        )

    def draw(self, position: BatchPosition) -> Generator[Any, None, None]:
        per_pass = self.per_pass
        if not self.per_epoch or (per_pass is not None and position.batches >= per_pass):
            return
        before = 0 if per_pass is None else position.passes * per_pass
        end = None if per_pass is None else before + per_pass
        iterator = iter(self._read_ahead(self._endless[before + position.batches : end]))
        try:
            yield from iterator
        finally:
            iterator.close()

    def _read_ahead(self, batches: Any) -> Any:
        import grain
        from absl import flags

        options = self._options
        threads = options.threads if options.prefetch else 0
        dataset = batches.to_iter_dataset(
            grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(options.prefetch, threads))
        )
        if not options.processes:
            return dataset
        if not flags.FLAGS.is_parsed():  # scripts without absl never parse Grain's own flags
            flags.FLAGS.mark_as_parsed()
        # Named shared memory outlives a `kill -9`; pipes do not.
        unnamed = grain.experimental.WithOptionsIterDataset(
            dataset, grain.experimental.DatasetOptions(min_shm_size=sys.maxsize)
        )
        return unnamed.mp_prefetch(
            grain.MultiprocessingOptions(
                num_workers=options.processes, per_worker_buffer_size=max(1, options.prefetch)
            ),
            worker_init_fn=_end_with_parent,
        )


def _end_with_parent(index: int, count: int) -> None:
    """End this process, which reads ahead, when the one that it reads for has ended in whatever way."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="stratagem-end-with-parent", daemon=True).start()


def permute(positions: NDArray[np.int64], length: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the elements at some positions of a shuffled order, of any length and without memory for all of it. Pure.

    A Feistel network over the rows and columns of a square permutes a few numbers more than there are; those beyond
    the length are permuted again until they are not.

    Args:
        positions: Numbers from 0 to `length - 1`.
        length: How many elements there are.
        seed: The same numbers give the same order.

    Example:
        >>> order = permute(np.arange(10), 10, seed=(1, 0))
        >>> sorted(order.tolist()) == list(range(10)), bool(order[3] == permute(np.array([3]), 10, seed=(1, 0))[0])
        (True, True)
    """
    # Few of the numbers below columns * rows are beyond the length.
    columns = np.uint64(math.isqrt(max(1, length) - 1) + 1)
    rows = np.uint64(-(-max(1, length) // int(columns)))
    keys = np.random.SeedSequence(seed).generate_state(2 * _ROUNDS, np.uint64)
    elements = positions.astype(np.uint64)
    outside = np.arange(len(elements))
    while len(outside):
        row, column = np.divmod(elements[outside], columns)
        for first, second in keys.reshape(_ROUNDS, 2):
            column = (column + _mix(row + first) % columns) % columns
            row = (row + _mix(column + second) % rows) % rows
        elements[outside] = row * columns + column
        outside = outside[elements[outside] >= length]
    return elements.astype(np.int64)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Make every bit of a value depend on all of its bits (the last step of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
