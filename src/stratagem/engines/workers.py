"""The processes that train together, as a strategy sees them: how many, which one this is, what they share."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from stratagem.cluster import ClusterSpec
from stratagem.engines.chief_files import ChiefFiles

Array = np.ndarray[Any, np.dtype[Any]]


class Workers(Protocol):
    """The worker processes of a synchronous strategy.

    Attributes:
        index: Which one this is.
        count: How many there are.
        is_chief: Whether this one writes what only one should write.
        cluster: The cluster, if there is one.
        files: The files that all workers save and the chief writes; `None` where one process runs the script.
    """

    index: int
    count: int
    is_chief: bool
    cluster: ClusterSpec | None
    files: ChiefFiles | None

    def gather(self, array: Array) -> Sequence[Array]:
        """The arrays of all workers, in their order."""
        ...

    def close(self) -> None:
        """Leave the others, having finished."""
        ...


class Alone:
    """One process, which is chief."""

    index = 0
    count = 1
    is_chief = True
    cluster: ClusterSpec | None = None
    files: ChiefFiles | None = None

    def gather(self, array: Array) -> Sequence[Array]:
        """Its own array."""
        return [array]

    def close(self) -> None:
        """Nothing to leave."""
