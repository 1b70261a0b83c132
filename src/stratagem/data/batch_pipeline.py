"""`pipeline`: batches of files, arrays or any iterable: sharded, shuffled, read ahead, and resumable."""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from stratagem.data.batch_source import BatchOptions, BatchPosition, BatchSource, PipelineIndex, Plain
from stratagem.data.grain_batches import GrainBatches
from stratagem.data.numbered_rows import ArrayRows, ElementRows, NumberedRows, RecordRows
from stratagem.data.stream_batches import StreamBatches
from stratagem.data.tfrecord_reader import FileShard, shard_files
from stratagem.errors import DataError

Shard: TypeAlias = tuple[int, int] | PipelineIndex


class Pipeline:
    """Batches that can be iterated again and again, and resumed in the middle; made by `pipeline`.

    Each iteration is a new pass, shuffled anew; the first one after `restore` resumes where the state was saved.
    Threads and processes that read ahead end with the iteration: when it is exhausted, left or garbage-collected.

    Args:
        source: Draws the batches.
        recipe: How the batches are made; a state with another recipe is not restored.

    Attributes:
        batches_per_epoch: How many batches this worker gets from the source once, if that is known.
        batches_per_pass: How many it gets in all `epochs` of a pass, if that is known.
        is_endless: Whether a pass has no end: `epochs=None`.
    """

    def __init__(self, source: BatchSource, recipe: Mapping[str, Plain]) -> None:
        self._source = source
        self._recipe = dict(recipe)
        self.batches_per_epoch = source.per_epoch
        self.batches_per_pass = source.per_pass
        self.is_endless = recipe["epochs"] is None
        self._position = BatchPosition()
        self._is_restored = False

    def __iter__(self) -> Iterator[Any]:
        start = self._position
        if not self._is_restored and start.batches:  # the last pass was left in the middle
            start = BatchPosition(start.passes + 1)
        self._is_restored = False
        self._position = start
        return self._iterate(start)

    def _iterate(self, start: BatchPosition) -> Generator[Any, None, None]:
        batches = self._source.draw(start)
        try:
            for number, batch in enumerate(batches, start.batches + 1):
                self._position = BatchPosition(start.passes, number)
                yield batch
            self._position = BatchPosition(start.passes + 1)
        finally:
            batches.close()

    def state(self, taken: int | None = None) -> dict[str, Plain]:
        """Return the position of the latest iteration as plain values: numbers and strings.

        Args:
            taken: How many batches have been trained on since the very beginning, over all passes, if that is
                not the number of batches drawn. `strategy.distribute` draws a batch ahead for devices with
                a memory of their own: under it, give the number of steps.
        """
        if taken is None:
            return self._position.state(self._recipe)
        if not self.batches_per_pass:
            return BatchPosition(0, taken).state(self._recipe)
        return BatchPosition(*divmod(taken, self.batches_per_pass)).state(self._recipe)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration begin with the batch after the position in a state.

        Raises:
            DataError: The state is of other batches: of another size, seed, source or number of shards.
        """
        self._position = BatchPosition.from_state(state, self._recipe)
        self._is_restored = True


def pipeline(
    source: Any,
    batch_size: int,
    *,
    shuffle_seed: int | None = None,
    shard: Shard | None = None,
    parse: Callable[[Any], Any] | None = None,
    epochs: int | None = 1,
    drop_remainder: bool = False,
    prefetch: int = 2,
    threads: int = 1,
    processes: int = 0,
) -> Pipeline:
    """Make batches of a source.

    Sources whose rows have numbers are plain TFRecord files, arrays, and sequences. All their rows are shuffled, each
    epoch differently, and any position is resumed at once; they need the extra `data` (Grain). Any other iterable does
    not need it, is not shuffled (`shuffle_batch` does that), and is resumed by drawing again what was drawn before.

    Args:
        source: Paths of TFRecord files, or the result of `shard_files`; an array, or a dict or tuple of arrays with
            the rows first; a sequence of elements; or any iterable of elements.
        batch_size: Rows per batch; the last of an epoch may be smaller.
        shuffle_seed: Shuffle with this seed; `None` keeps the order.
        shard: This worker's shard, as `(index, count)` or as the `InputContext` from `distribute_from_function`: whole
            files if there are enough of them, else each `count`-th row.
        parse: Called with each batch, such as `lambda batch: parse_example(batch, features)`; a batch of TFRecord
            files is a `RecordBatch`.
        epochs: How often one pass goes over the source; `None` without end.
        drop_remainder: Leave out a last batch that is smaller.
        prefetch: How many batches to read ahead; with 0 each is read when it is asked for.
        threads: How many threads read ahead.
        processes: How many processes read ahead, where `parse` takes long; a script that uses them needs
            `if __name__ == "__main__":`.

    Returns:
        An iterable; its `state()` is the position as plain values, `restore(state)` resumes from there.

    Example:
        >>> batches = pipeline({"x": np.arange(5)}, 2)
        >>> [batch["x"].tolist() for batch in batches]
        [[0, 1], [2, 3], [4]]
    """
    from_one = {"batch_size": batch_size, "threads": threads, "epochs": 1 if epochs is None else epochs}
    from_zero = {"prefetch": prefetch, "processes": processes}
    for name, value in {**from_one, **from_zero}.items():
        lowest = 0 if name in from_zero else 1
        if not isinstance(value, int | np.integer) or value < lowest:
            raise DataError(f"{name} is {value!r}; give a whole number of at least {lowest}")
    if shuffle_seed is not None and not 0 <= shuffle_seed < 2**32:
        raise DataError(f"shuffle_seed is {shuffle_seed!r}; give a whole number from 0 to 2**32 - 1, or None")
    index, count = _index_and_count(shard)
    recipe: dict[str, Plain] = {
        "batch_size": int(batch_size),
        "shuffle_seed": None if shuffle_seed is None else int(shuffle_seed),
        "shard": index,
        "shards": count,
        "epochs": None if epochs is None else int(epochs),
        "drop_remainder": drop_remainder,
    }
    options = BatchOptions(
        int(batch_size), shuffle_seed, index, count, epochs, drop_remainder, prefetch, threads, processes
    )
    numbered = _numbered_rows(source, index, count)
    if numbered is None:
        return Pipeline(_stream_batches(source, parse, options), recipe)
    rows, (row_index, row_count) = numbered
    batches = GrainBatches(rows, parse, replace(options, shard_index=row_index, shard_count=row_count))
    return Pipeline(batches, {**recipe, "rows": batches.rows, "source": rows.identity})


def _index_and_count(shard: Shard | None) -> tuple[int, int]:
    if shard is None:
        return 0, 1
    if isinstance(shard, tuple) and len(shard) == 2:
        index, count = shard
    elif hasattr(shard, "input_pipeline_id"):
        index, count = shard.input_pipeline_id, shard.num_input_pipelines
    else:
        raise DataError(
            f"shard is {shard!r}; give (index, count), or the context of "
            "strategy.distribute_from_function(lambda context: pipeline(..., shard=context))"
        )
    if count < 1 or not 0 <= index < count:
        raise DataError(f"shard {index} of {count}; give count >= 1 and 0 <= index < count")
    return int(index), int(count)


def _numbered_rows(source: Any, index: int, count: int) -> tuple[NumberedRows, tuple[int, int]] | None:
    """Return the source as numbered rows, and the index and count of this worker's; `None` if they have no numbers."""
    if isinstance(source, str | os.PathLike):
        source = [source]
    if isinstance(source, FileShard):
        if count > 1:
            raise DataError(
                f"shard {index} of {count} for files that shard_files has already divided; give one of the two"
            )
        return RecordRows.of(source.files), (source.shard_index, source.num_shards)
    if _are_paths(source):
        own = shard_files([Path(path) for path in source], count, index)
        return RecordRows.of(own.files), (own.shard_index, own.num_shards)
    if isinstance(source, tuple | Mapping) or hasattr(source, "__array__"):
        return ArrayRows.of(source), (index, count)
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return ElementRows(source), (index, count)
    return None


def _are_paths(source: Any) -> bool:
    return (
        isinstance(source, Sequence)
        and len(source) > 0
        and all(isinstance(each, str | os.PathLike) for each in source)
    )


def _stream_batches(source: Any, parse: Callable[[Any], Any] | None, options: BatchOptions) -> StreamBatches:
    if not isinstance(source, Iterable):
        raise DataError(f"source is {source!r}; give paths, arrays, a sequence or an iterable")
    if options.shuffle_seed is not None or options.processes:
        option = "shuffle_seed" if options.shuffle_seed is not None else "processes"
        raise DataError(
            f"{option} for a {type(source).__name__}, whose elements have no numbers: give a sequence, arrays or plain "
            f"TFRecord files{', or shuffle it with shuffle_batch' if option == 'shuffle_seed' else ''}"
        )
    return StreamBatches(source, parse, options)
