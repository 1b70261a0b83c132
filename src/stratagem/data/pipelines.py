"""`pipeline`: from files, arrays or any iterable to batches: sharded, shuffled, read ahead, and gone on with."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from stratagem.data.batch_pipeline import Pipeline
from stratagem.data.batch_position import Plain
from stratagem.data.grain_batches import GrainBatches, GrainOptions
from stratagem.data.rows_by_number import Columns, Elements, NumberedRows, RecordFiles
from stratagem.data.sharding import FileShard, shard_files
from stratagem.data.stream_batches import StreamBatches
from stratagem.errors import DataError


class HasPlace(Protocol):
    """What tells a worker its place among the pipelines, such as `sg.InputContext`."""

    @property
    def num_input_pipelines(self) -> int:
        """How many there are."""
        ...

    @property
    def input_pipeline_id(self) -> int:
        """Which one this is."""
        ...


Shard: TypeAlias = tuple[int, int] | HasPlace


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
    """Batches of whatever there is.

    Sources whose rows have numbers are shuffled whole, each epoch otherwise, and gone on with at once wherever it
    was; they need the extra `data` (Grain): plain TFRecord files, arrays, and sequences. Any other iterable does
    without, is not shuffled (`shuffle_batch` does that), and gone on with by drawing anew what was drawn before.

    Args:
        source: Paths of TFRecord files, or what `shard_files` returned; an array, or a dict or tuple of arrays with
            the rows first; a sequence of elements; or any iterable of elements.
        batch_size: Rows per batch; the last of an epoch may be smaller.
        shuffle_seed: Shuffle with this seed; `None` keeps the order.
        shard: This worker's place, as `(index, count)` or as the `InputContext` that `distribute_from_function`
            gives: it takes whole files if there are enough of them, else each `count`-th row.
        parse: Called with each batch, such as `lambda batch: parse_example(batch, features)`; a batch of TFRecord
            files is a `RecordBatch`.
        epochs: How often one pass goes over the source; `None` for ever.
        drop_remainder: Leave out a last batch that is smaller.
        prefetch: How many batches to read ahead; 0 reads when asked.
        threads: How many threads read ahead.
        processes: How many processes read ahead, where `parse` takes long; a script that uses them needs
            `if __name__ == "__main__":`.

    Returns:
        An iterable; its `state()` is the position as plain values, `restore(state)` goes on from there.

    Example:
        >>> batches = pipeline({"x": np.arange(5)}, 2)
        >>> [batch["x"].tolist() for batch in batches]
        [[0, 1], [2, 3], [4]]
    """
    numbers = {"batch_size": batch_size, "threads": threads}
    least = {"prefetch": prefetch, "processes": processes}
    for name, value in {**numbers, **least, "epochs": 1 if epochs is None else epochs}.items():
        lowest = 0 if name in least else 1
        if not isinstance(value, int | np.integer) or value < lowest:
            raise DataError(f"{name} is {value!r}; give a whole number of at least {lowest}")
    if shuffle_seed is not None and not 0 <= shuffle_seed < 2**32:
        raise DataError(f"shuffle_seed is {shuffle_seed!r}; give a whole number from 0 to 2**32 - 1, or None")
    index, count = _place(shard)
    made_of: dict[str, Plain] = {
        "batch_size": int(batch_size),
        "shuffle_seed": None if shuffle_seed is None else int(shuffle_seed),
        "shard": index,
        "shards": count,
        "epochs": None if epochs is None else int(epochs),
        "drop_remainder": drop_remainder,
    }
    rows = _numbered(source, index, count)
    if rows is None:
        return _of_stream(source, made_of, index, count, parse, prefetch, shuffle_seed, processes)
    taken, (row_index, row_count) = rows
    options = GrainOptions(
        int(batch_size), shuffle_seed, row_index, row_count, epochs, drop_remainder, prefetch, threads, processes
    )  # fmt: skip
    batches = GrainBatches(taken, parse, options)
    made_of |= {"rows": batches.rows, "source": taken.identity}
    return Pipeline(batches.draw, made_of, batches.per_epoch, batches.per_pass)


def _place(shard: Shard | None) -> tuple[int, int]:
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


def _numbered(source: Any, index: int, count: int) -> tuple[NumberedRows, tuple[int, int]] | None:
    """The source as rows by number, and which of them are this worker's; `None` if they have no numbers."""
    if isinstance(source, str | os.PathLike):
        source = [source]
    if isinstance(source, FileShard):
        if count > 1:
            raise DataError(
                f"shard {index} of {count} for what shard_files has shared out already; give one of the two"
            )
        return RecordFiles.of(source.files), (source.shard_index, source.num_shards)
    if _are_paths(source):
        own = shard_files([Path(path) for path in source], count, index)
        return RecordFiles.of(own.files), (own.shard_index, own.num_shards)
    if isinstance(source, tuple | Mapping) or hasattr(source, "__array__"):
        return Columns.of(source), (index, count)
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return Elements(source), (index, count)
    return None


def _are_paths(source: Any) -> bool:
    return (
        isinstance(source, Sequence)
        and len(source) > 0
        and all(isinstance(each, str | os.PathLike) for each in source)
    )


def _of_stream(
    source: Any,
    made_of: Mapping[str, Any],
    index: int,
    count: int,
    parse: Callable[[Any], Any] | None,
    prefetch: int,
    shuffle_seed: int | None,
    processes: int,
) -> Pipeline:
    if not isinstance(source, Iterable):
        raise DataError(f"source is {source!r}; give paths, arrays, a sequence or an iterable")
    if shuffle_seed is not None or processes:
        asked = "shuffle_seed" if shuffle_seed is not None else "processes"
        raise DataError(
            f"{asked} for a {type(source).__name__}, whose elements have no numbers: give a sequence, arrays or plain "
            f"TFRecord files{', or shuffle it with shuffle_batch' if asked == 'shuffle_seed' else ''}"
        )
    batches = StreamBatches(
        source, made_of["batch_size"], parse, index, count, made_of["epochs"], made_of["drop_remainder"], prefetch
    )  # fmt: skip
    return Pipeline(batches.draw, made_of, None, None)
