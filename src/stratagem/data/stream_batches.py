"""Batches of any iterable, read ahead by a thread; their position is how many of them have been drawn."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from stratagem.data.batch_position import BatchPosition
from stratagem.data.prefetching import Prefetched
from stratagem.data.stacking import stack
from stratagem.errors import DataError


@dataclass(frozen=True, eq=False)
class StreamBatches:
    """Draws batches of a stream.

    Attributes:
        stream: The elements.
        batch_size: Elements per batch.
        parse: Makes the batch that is wanted of the one that was stacked.
        shard_index: Take each `shard_count`-th element, beginning with this one.
        shard_count: How many shards there are.
        epochs: How often a pass goes over the stream; `None` for ever.
        drop_remainder: Leave out a last batch of an epoch that is smaller.
        prefetch: How many batches to read ahead.
    """

    stream: Iterable[Any]
    batch_size: int
    parse: Callable[[Any], Any] | None = None
    shard_index: int = 0
    shard_count: int = 1
    epochs: int | None = 1
    drop_remainder: bool = False
    prefetch: int = 2

    def draw(self, position: BatchPosition) -> Generator[Any, None, None]:
        """The rest of a pass; what lies before is drawn and left out."""
        rest = islice(self._groups(), position.batches, None)
        batches = (self._made(group) for group in rest)
        if not self.prefetch:
            yield from batches
            return
        with closing(Prefetched(batches, self.prefetch)) as ahead:
            yield from ahead

    def _groups(self) -> Iterator[list[Any]]:
        for epoch in count() if self.epochs is None else range(self.epochs):
            if epoch and iter(self.stream) is self.stream:
                raise DataError(
                    f"a {type(self.stream).__name__} can be passed over once, and epochs={self.epochs}; give something "
                    "that can be iterated anew, such as read_tfrecord(...), or epochs=1"
                )
            own = islice(self.stream, self.shard_index, None, self.shard_count)
            group: list[Any] = []
            is_empty = True
            for element in own:
                is_empty = False
                group.append(element)
                if len(group) == self.batch_size:
                    yield group
                    group = []
            if group and not self.drop_remainder:
                yield group
            if is_empty:
                return  # or an empty stream would be looked at for ever

    def _made(self, group: list[Any]) -> Any:
        batch = stack(group)
        return batch if self.parse is None else self.parse(batch)
