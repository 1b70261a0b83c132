"""Rules that say into how many shards a variable is cut along its first axis, and where the cuts are.

The rules are those of TensorFlow's `tf.distribute.experimental.partitioners`: given a shape and a dtype they
give a number of shards. Scalars are never cut, and no variable into more shards than it has rows.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

from stratagem.devices.checks import positive, whole_number
from stratagem.devices.sizes import dimensions, item_size
from stratagem.errors import ConfigurationError


@runtime_checkable
class ShardRule(Protocol):
    """A way to choose the number of shards of a variable."""

    def num_shards(self, shape: object, dtype: object) -> int:
        """Into how many shards to cut a variable of this shape and dtype along axis 0; at least 1."""
        ...


@dataclass(frozen=True)
class FixedShards:
    """The same number of shards for every variable.

    Args:
        n: how many.

    Example:
        >>> FixedShards(4).num_shards((10, 3), "float32")
        4
    """

    n: int

    def __post_init__(self) -> None:
        positive("n", self.n, "FixedShards(4)")

    def num_shards(self, shape: object, dtype: object) -> int:
        """`n`, or the number of rows if there are fewer."""
        return _bounded(self.n, dimensions(shape))


@dataclass(frozen=True)
class MinSizeShards:
    """As many shards as there are `min_bytes` in the variable, rounded up, but at most `max_shards`.

    Args:
        min_bytes: the size below which a shard is not worth its trouble.
        max_shards: the most shards that a variable gets, such as the number of parameter servers.

    Example:
        >>> MinSizeShards(min_bytes=256 << 10, max_shards=8).num_shards((784, 500), "float32")
        6
    """

    min_bytes: int
    max_shards: int

    def __post_init__(self) -> None:
        positive("min_bytes", self.min_bytes, "MinSizeShards(min_bytes=256 << 10, max_shards=4)")
        positive("max_shards", self.max_shards, "MinSizeShards(min_bytes=256 << 10, max_shards=4)")

    def num_shards(self, shape: object, dtype: object) -> int:
        """The number of shards for a variable of this shape and dtype."""
        lengths = dimensions(shape)
        total = math.prod(lengths) * item_size(dtype)
        return _bounded(min(self.max_shards, -(-total // self.min_bytes)), lengths)


@dataclass(frozen=True)
class MaxSizeShards:
    """As few shards as keep each of them, in whole rows, at or below `max_bytes`.

    Args:
        max_bytes: the size that a shard may have; a single row may be larger.
        max_shards: the most shards that a variable gets, even if they are too large; `None` for no limit.

    Example:
        >>> MaxSizeShards(max_bytes=1 << 20).num_shards((784, 500), "float32")
        2
    """

    max_bytes: int
    max_shards: int | None = None

    def __post_init__(self) -> None:
        positive("max_bytes", self.max_bytes, "MaxSizeShards(max_bytes=1 << 20)")
        if self.max_shards is not None:
            positive("max_shards", self.max_shards, "MaxSizeShards(max_bytes=1 << 20, max_shards=4)")

    def num_shards(self, shape: object, dtype: object) -> int:
        """The number of shards for a variable of this shape and dtype."""
        lengths = dimensions(shape)
        row = math.prod(lengths[1:]) * item_size(dtype)
        if not lengths or row == 0:
            return 1
        shards = -(-lengths[0] // max(1, self.max_bytes // row))
        return _bounded(shards if self.max_shards is None else min(self.max_shards, shards), lengths)


def row_ranges(rows: int, shards: int) -> list[range]:
    """The rows of each shard: consecutive, as equal as can be, the longer ones first.

    Raises:
        ConfigurationError: if there is not at least one row for each of at least one shard.

    Example:
        >>> row_ranges(10, 4)
        [range(0, 3), range(3, 6), range(6, 8), range(8, 10)]
    """
    shards = positive("shards", shards, "row_ranges(10, 4)")
    count = whole_number(rows)
    if count is None or count < 0 or (shards > 1 and count < shards):
        raise ConfigurationError(
            f"{rows!r} rows cannot be cut into {shards} shard(s); each needs a row: ask for fewer shards, as "
            "the num_shards of a shard rule does"
        )
    length, longer = divmod(count, shards)
    starts = [shard * length + min(shard, longer) for shard in range(shards + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def part_name(name: str, shard: int) -> str:
    """The name of a shard of the variable `name`.

    Example:
        >>> part_name("embedding", 0)
        'embedding/part_0'
    """
    return f"{name}/part_{shard}"


def _bounded(shards: int, lengths: tuple[int, ...]) -> int:
    return max(1, min(shards, lengths[0])) if lengths else 1
