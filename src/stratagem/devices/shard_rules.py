"""The sizes of variables, and rules that split them along the first axis: into how many shards, and where.

The rules are those of TensorFlow's `tf.distribute.experimental.partitioners`: from a shape and a dtype they
get a number of shards. Scalars are never split, and no variable has more shards than rows.

Sizes follow from shapes and dtypes alone. NumPy is not needed: names and item sizes suffice.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from stratagem.devices.whole_numbers import positive, whole_number
from stratagem.errors import ConfigurationError

_BITS = re.compile(r"(?:u?int|float|bfloat|complex)(\d+)(?:_e\d\w*)?")
_CODE = re.compile(r"[<>=|]?[fiuc](\d+)")
_BOOL = frozenset({"bool", "bool_", "?", "|b1", "b1"})


@runtime_checkable
class ShardRule(Protocol):
    """A way to choose the number of shards of a variable."""

    def num_shards(self, shape: object, dtype: object) -> int:
        """Return into how many shards to split a variable of this shape and dtype along axis 0; at least 1."""
        ...


@dataclass(frozen=True)
class FixedShards(ShardRule):
    """A fixed number of shards for every variable, or the number of its rows if there are fewer.

    Args:
        n: The number of shards.

    Example:
        >>> FixedShards(4).num_shards((10, 3), "float32")
        4
    """

    n: int

    def __post_init__(self) -> None:
        positive("n", self.n, "FixedShards(4)")

    def num_shards(self, shape: object, dtype: object) -> int:
        return _bounded(self.n, dimensions(shape))


@dataclass(frozen=True)
class MinSizeShards(ShardRule):
    """As many shards as there are `min_bytes` in the variable, rounded up, but at most `max_shards`.

    Args:
        min_bytes: The size below which a shard is not worth its overhead.
        max_shards: The most shards that a variable gets, such as the number of parameter servers.

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
        lengths = dimensions(shape)
        total = math.prod(lengths) * item_size(dtype)
        return _bounded(min(self.max_shards, -(-total // self.min_bytes)), lengths)


@dataclass(frozen=True)
class MaxSizeShards(ShardRule):
    """As few shards as keep each of them, in whole rows, at or below `max_bytes`.

    Args:
        max_bytes: The size that a shard may have; a single row may be larger.
        max_shards: The most shards that a variable gets, even if they are too large; `None` for no limit.

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
        lengths = dimensions(shape)
        row = math.prod(lengths[1:]) * item_size(dtype)
        if not lengths or row == 0:
            return 1
        shards = -(-lengths[0] // max(1, self.max_bytes // row))
        return _bounded(shards if self.max_shards is None else min(self.max_shards, shards), lengths)


def row_ranges(rows: int, shards: int) -> list[range]:
    """Return the rows of each shard: consecutive, as equal as can be, the longer ones first.

    Raises:
        ConfigurationError: There is not at least one row for each of at least one shard.

    Example:
        >>> row_ranges(10, 4)
        [range(0, 3), range(3, 6), range(6, 8), range(8, 10)]
    """
    shards = positive("shards", shards, "row_ranges(10, 4)")
    count = whole_number(rows)
    if count is None or count < 0 or (shards > 1 and count < shards):
        raise ConfigurationError(
            f"{rows!r} rows cannot be split into {shards} shard(s); each needs a row: ask for fewer shards, as "
            "the num_shards of a shard rule does"
        )
    length, longer = divmod(count, shards)
    starts = [shard * length + min(shard, longer) for shard in range(shards + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def part_name(name: str, shard: int) -> str:
    """Return the name of a shard of the variable `name`.

    Example:
        >>> part_name("embedding", 0)
        'embedding/part_0'
    """
    return f"{name}/part_{shard}"


def _bounded(shards: int, lengths: tuple[int, ...]) -> int:
    return max(1, min(shards, lengths[0])) if lengths else 1


class Sized(Protocol):
    """Anything with a shape and a dtype: an array, a Keras variable, a `jax.ShapeDtypeStruct`."""

    @property
    def shape(self) -> Any:
        """The length of each axis."""
        ...

    @property
    def dtype(self) -> Any:
        """A NumPy, JAX or ml_dtypes dtype, or its name."""
        ...


def is_sized(value: object) -> bool:
    """Return whether `value` has a shape and a dtype, that is, can be a variable."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def byte_size(variable: Sized) -> int:
    """Return the bytes that a variable takes.

    Raises:
        ConfigurationError: It has no shape or dtype, or these are not fully known.

    Example:
        >>> import numpy
        >>> byte_size(numpy.zeros((784, 500), "float32"))
        1568000
    """
    if not is_sized(variable):
        raise ConfigurationError(
            f"{variable!r} has no size; a variable needs .shape and .dtype, as an array or a "
            "jax.ShapeDtypeStruct has them"
        )
    return math.prod(dimensions(variable.shape)) * item_size(variable.dtype)


def dimensions(shape: object) -> tuple[int, ...]:
    """Return a shape as a tuple of `int`.

    Raises:
        ConfigurationError: It is not a sequence of whole numbers from 0 up.
    """
    lengths = [whole_number(length) for length in shape] if isinstance(shape, Iterable) else [None]
    known = tuple(length for length in lengths if length is not None and length >= 0)
    if len(known) != len(lengths):
        raise ConfigurationError(
            f"the shape {shape!r} is not fully known; it has to be a sequence of whole numbers, such as (784, 500)"
        )
    return known


def item_size(dtype: object) -> int:
    """Return the bytes of one element.

    Raises:
        ConfigurationError: `dtype` is not a dtype of fixed size.

    Example:
        >>> item_size("bfloat16")
        2
    """
    size = whole_number(getattr(dtype, "itemsize", None))
    if size:
        return size
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", getattr(dtype, "__name__", ""))
    if name in _BOOL:
        return 1
    if match := _BITS.fullmatch(str(name)):
        return max(1, int(match[1]) // 8)
    if match := _CODE.fullmatch(str(name)):
        return int(match[1])
    raise ConfigurationError(
        f"the dtype {dtype!r} has no known size; give a NumPy or JAX dtype, or a name such as 'float32', "
        "'bfloat16', 'int8' or 'bool'"
    )
