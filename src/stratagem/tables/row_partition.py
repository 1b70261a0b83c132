"""Rows shared out among servers: ids fall into buckets by hash, and each server has a range of buckets."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem.runtime.wire.arrays import Array
from stratagem.tables.keyed_columns import mix_bits

_BUCKET_BITS = 12


def owners(ids: Array, servers: int) -> Array:
    """Return the number of the server that has each id.

    With another number of servers whole buckets move: no row is computed anew.
    """
    buckets = mix_bits(ids.view(np.uint64)) >> np.uint64(64 - _BUCKET_BITS)
    numbers: Array = (buckets.astype(np.int64) * servers) >> _BUCKET_BITS
    return numbers


class RowPartition:
    """Ids, and whatever belongs to them row by row, split by server.

    Args:
        ids: The ids, each once.
        servers: How many servers there are.

    Attributes:
        ids: For each server, its ids, in their order.
    """

    def __init__(self, ids: Array, servers: int) -> None:
        self._count = len(ids)
        if servers == 1:
            self._places: list[Any] = [slice(None)]
        else:
            numbers = owners(ids, servers)
            self._places = [np.flatnonzero(numbers == server) for server in range(servers)]
        self.ids = self.split(ids)

    def split(self, rows: Array) -> list[Array]:
        """Return for each server the rows of its ids."""
        return [rows[place] for place in self._places]

    def join(self, parts: Sequence[Array], size: int) -> Array:
        """Return the rows of all ids from those of each server, followed by zeros up to `size` rows."""
        result = np.zeros((size, *parts[0].shape[1:]), parts[0].dtype)
        for place, part in zip(self._places, parts, strict=True):
            result[: self._count][place] = part
        return result


def merge_gradients(pushes: Sequence[tuple[int, Array, Array]]) -> tuple[Array, Array]:
    """Merge the gradients of several pushes into those of one.

    Args:
        pushes: Of each the number of examples, the ids, each once, and their gradients.

    Returns:
        All ids, each once, and the means of their gradients over all examples, added up in the order of the pushes.
    """
    if len(pushes) == 1:
        return pushes[0][1:]
    ids, places = np.unique(np.concatenate([ids for _, ids, _ in pushes]), return_inverse=True)
    first = pushes[0][2]
    sums = np.zeros((len(ids), *first.shape[1:]), np.promote_types(first.dtype, np.float32))
    examples = sum(count for count, _, _ in pushes)
    start = 0
    for count, own, gradients in pushes:
        sums[places[start : start + len(own)]] += gradients * np.float32(count / examples)
        start += len(own)
    return ids, sums.astype(first.dtype)
