"""Where the rows of a model's tables are, for whoever trains them or looks at them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from stratagem.keep import StoredArray
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.stacks import Stack
from stratagem.tables.table_files import TableFiles


class RowSource(ABC):
    """The rows of a model's tables.

    Attributes:
        stacks: The tables, as they are kept together.
    """

    stacks: list[Stack]

    @property
    @abstractmethod
    def form(self) -> dict[str, StoredArray]:
        """What there is of each stack, for a checkpoint of one model to be told from that of another."""

    @abstractmethod
    def copies(self) -> dict[str, Array]:
        """Copies of the rows that are in this process, by the names that they have in a file."""

    @abstractmethod
    def restore(self, files: TableFiles) -> None:
        """Have those rows in this process that are in files, and no others."""

    @abstractmethod
    def count(self, stack: int) -> int:
        """How many rows there are of a stack."""

    @abstractmethod
    def read(self, stack: int, ids: Array) -> Array:
        """The values of ids, each given once; of one that has no row, its first value."""

    @abstractmethod
    def pages(self, stack: int, size: int) -> Iterator[tuple[Array, Sequence[Array]]]:
        """All rows of a stack, so many at a time: ids, values and slots."""
