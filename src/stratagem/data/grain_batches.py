"""Batches of numbered rows: shuffled whole, begun anywhere, and read ahead by Grain's threads or processes."""

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from stratagem.data.batch_position import BatchPosition
from stratagem.data.permutation import permuted
from stratagem.data.rows_by_number import NumberedRows
from stratagem.errors import MissingExtra


@dataclass(frozen=True)
class GrainOptions:
    """How batches are made.

    Attributes:
        batch_size: Rows per batch.
        shuffle_seed: Shuffle with this seed, each epoch otherwise; `None` keeps the order.
        shard_index: Take each `shard_count`-th row, beginning with this one.
        shard_count: How many shards there are.
        epochs: How often a pass goes over the rows; `None` for ever.
        drop_remainder: Leave out a last batch that is smaller.
        prefetch: How many batches to read ahead.
        threads: How many threads read.
        processes: How many processes read; none: the threads are in this one.
    """

    batch_size: int
    shuffle_seed: int | None = None
    shard_index: int = 0
    shard_count: int = 1
    epochs: int | None = 1
    drop_remainder: bool = False
    prefetch: int = 2
    threads: int = 1
    processes: int = 0


@dataclass(frozen=True, eq=False)
class _Read:
    """Makes the number of a batch the batch: which rows, those rows, parsed."""

    source: NumberedRows
    rows: int
    per_epoch: int
    parse: Callable[[Any], Any] | None
    options: GrainOptions

    def __call__(self, number: Any) -> Any:
        epoch, batch = divmod(int(number), self.per_epoch)
        size = self.options.batch_size
        numbers = np.arange(batch * size, min((batch + 1) * size, self.rows))
        if self.options.shuffle_seed is not None:
            numbers = permuted(numbers, self.rows, (self.options.shuffle_seed, epoch))
        read = self.source.take(numbers * self.options.shard_count + self.options.shard_index)
        return read if self.parse is None else self.parse(read)


class GrainBatches:
    """Draws batches of rows.

    Args:
        rows: The rows.
        parse: Makes the batch that is wanted of the one that was read.
        options: How.

    Attributes:
        rows: How many rows are in its shard.
        per_epoch: How many batches an epoch has.
    """

    def __init__(self, rows: NumberedRows, parse: Callable[[Any], Any] | None, options: GrainOptions) -> None:
        try:
            import grain
        except ImportError as error:
            raise MissingExtra(
                f"a pipeline over files, arrays or sequences needs grain ({error}); install it: "
                "pip install 'stratagem[data]'; any other iterable goes without"
            ) from error
        self._options = options
        self.rows = len(range(options.shard_index, len(rows), options.shard_count))
        batches, smaller = divmod(self.rows, options.batch_size)
        self.per_epoch = batches + (smaller > 0 and not options.drop_remainder)
        # Grain is given whole batches to make: a row at a time, its bookkeeping takes longer than reading does.
        self._endless = grain.MapDataset.range(sys.maxsize).map(
            _Read(rows, self.rows, self.per_epoch, parse, options)
        )

    @property
    def per_pass(self) -> int | None:
        """How many batches a pass has; `None` if it does not end."""
        return None if self._options.epochs is None else self.per_epoch * self._options.epochs

    def draw(self, position: BatchPosition) -> Generator[Any, None, None]:
        """The rest of a pass."""
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
        read = batches.to_iter_dataset(
            grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(options.prefetch, threads))
        )
        if not options.processes:
            return read
        if (
            not flags.FLAGS.is_parsed()
        ):  # Grain reads flags of its own, which scripts without absl never parse
            flags.FLAGS.mark_as_parsed()
        # What goes through shared memory by name outlives a `kill -9`; pipes do not.
        unnamed = grain.experimental.WithOptionsIterDataset(
            read, grain.experimental.DatasetOptions(min_shm_size=sys.maxsize)
        )
        return unnamed.mp_prefetch(
            grain.MultiprocessingOptions(
                num_workers=options.processes, per_worker_buffer_size=max(1, options.prefetch)
            ),
            worker_init_fn=_end_with_parent,
        )


def _end_with_parent(index: int, count: int) -> None:
    """In a process that reads ahead: end when the one that it reads for is gone, however it went."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="stratagem-end-with-parent", daemon=True).start()
