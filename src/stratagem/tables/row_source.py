"""Where the rows of a model's tables are, for whoever trains them or looks at them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from stratagem.tables.stacks import Stack

Array: TypeAlias = np.ndarray[Any, Any]


class RowSource(ABC):
    """The rows of a model's tables.

    Attributes:
        stacks: The tables, as they are kept together.
    """

    stacks: list[Stack]

    @abstractmethod
    def count(self, stack: int) -> int:
        """How many rows there are of a stack."""

    @abstractmethod
    def read(self, stack: int, ids: Array) -> Array:
        """The values of ids, each given once; of one that has no row, its first value."""

    @abstractmethod
    def pages(self, stack: int, size: int) -> Iterator[tuple[Array, Sequence[Array]]]:
        """All rows of a stack, so many at a time: ids, values and slots."""
