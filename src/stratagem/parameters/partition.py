"""Which parameter server holds which variables: in turn, by load, or cut by rows. Every worker computes the same."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from stratagem.devices import PlacementRule, RoundRobin, ShardRule, assign, row_ranges
from stratagem.errors import StrategyError
from stratagem.parameters.split import Piece

_log = logging.getLogger("stratagem")
Partitioner: TypeAlias = PlacementRule | ShardRule | Callable[[tuple[int, ...], Any], Any]
"""A rule that places variables, a rule that cuts them, or a function of shape and dtype that returns a number of
parts along axis 0 (or, as TensorFlow's do, a list of numbers of parts, one for each axis)."""


@dataclass(frozen=True)
class Leaf:
    """A variable that is placed: a name, a shape and a dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: Any


def partition(
    leaves: Sequence[Leaf],
    partitioner: Partitioner | None,
    servers: int,
    whole_because: Sequence[str | None],
) -> list[list[Piece]]:
    """Return the pieces of each server.

    Args:
        leaves: The variables.
        partitioner: The user's rule; in turn by default.
        servers: How many servers there are.
        whole_because: For each variable, why it must not be cut; `None` if it may.

    Example:
        >>> leaves = [Leaf("w", (4, 2), "float32"), Leaf("b", (2,), "float32")]
        >>> partition(leaves, None, 2, [None, None])
        [[Piece(leaf=0, start=0, stop=None)], [Piece(leaf=1, start=0, stop=None)]]
    """
    if isinstance(partitioner, PlacementRule):
        pieces = [Piece(number) for number in range(len(leaves))]
        homes = assign(partitioner, leaves, servers)
    else:
        pieces = []
        for number, leaf in enumerate(leaves):
            pieces += _cut(number, leaf, _shards(partitioner, leaf), whole_because[number])
        homes = assign(RoundRobin(), pieces, servers)
    by_server: list[list[Piece]] = [[] for _ in range(servers)]
    for piece, home in zip(pieces, homes, strict=True):
        by_server[home].append(piece)
    return by_server


def _shards(partitioner: ShardRule | Callable[[tuple[int, ...], Any], Any] | None, leaf: Leaf) -> int:
    if partitioner is None:
        return 1
    if isinstance(partitioner, ShardRule):
        return partitioner.num_shards(leaf.shape, leaf.dtype)
    if not callable(partitioner):
        raise StrategyError(
            f"partitioner is {partitioner!r}; give sg.RoundRobin(), sg.GreedyLoadBalancing(), sg.FixedShards(n), "
            "sg.MinSizeShards, sg.MaxSizeShards, or a function (shape, dtype) -> number of parts"
        )
    answer = partitioner(leaf.shape, leaf.dtype)
    numbers = list(answer) if isinstance(answer, list | tuple) else [answer]
    if not numbers or any(not isinstance(number, int) or number < 1 for number in numbers):
        raise StrategyError(
            f"the partitioner says {answer!r} for {leaf.name} of shape {leaf.shape}; it must give a whole number of parts, "
            "at least 1, or a list of such, one for each axis"
        )
    if any(number > 1 for number in numbers[1:]):
        raise StrategyError(
            f"the partitioner says {answer!r} for {leaf.name}: variables are cut along their first axis only, so all "
            "numbers but the first must be 1"
        )
    return min(numbers[0], max(1, leaf.shape[0])) if leaf.shape else 1


def _cut(number: int, leaf: Leaf, shards: int, whole_because: str | None) -> list[Piece]:
    if shards <= 1:
        return [Piece(number)]
    if whole_because is not None:
        _log.warning("%s is not cut into %d parts, it stays whole: %s", leaf.name, shards, whole_because)
        return [Piece(number)]
    return [Piece(number, rows.start, rows.stop) for rows in row_ranges(leaf.shape[0], shards)]
