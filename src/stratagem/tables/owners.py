"""Which server has the row of an id: ids fall into buckets, and each server has a range of these."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem.runtime.wire.arrays import Array
from stratagem.tables.index import mixed

_BUCKET_BITS = 12


def owners(ids: Array, servers: int) -> Array:
    """The number of the server that has each id.

    With another number of servers whole buckets go to others: no row is computed anew.
    """
    buckets = mixed(ids.view(np.uint64)) >> np.uint64(64 - _BUCKET_BITS)
    numbers: Array = (buckets.astype(np.int64) * servers) >> _BUCKET_BITS
    return numbers


class Division:
    """Ids divided among servers.

    Args:
        ids: The ids, each once.
        servers: How many servers there are.

    Attributes:
        parts: For each server, its ids, in their order.
    """

    def __init__(self, ids: Array, servers: int) -> None:
        self._count = len(ids)
        if servers == 1:
            self._places: list[Any] = [slice(None)]
        else:
            numbers = owners(ids, servers)
            self._places = [np.flatnonzero(numbers == server) for server in range(servers)]
        self.parts = [ids[place] for place in self._places]

    def divided(self, rows: Array) -> list[Array]:
        """For each server, the rows of its ids."""
        return [rows[place] for place in self._places]

    def joined(self, parts: Sequence[Array], size: int) -> Array:
        """The rows of all ids, from those of each server; zeros up to a size."""
        result = np.zeros((size, *parts[0].shape[1:]), parts[0].dtype)
        for place, part in zip(self._places, parts, strict=True):
            result[: self._count][place] = part
        return result
