"""Rows of different lengths in one array."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class RaggedArray:
    """What a feature of variable length gives for a batch.

    Attributes:
        values: All values, row after row.
        row_splits: Row i is `values[row_splits[i]:row_splits[i + 1]]`.

    Example:
        >>> ragged = RaggedArray(np.array([1, 2, 3]), np.array([0, 2, 2, 3]))
        >>> len(ragged), ragged[0], ragged.to_dense(0).tolist()
        (3, array([1, 2]), [[1, 2], [0, 0], [3, 0]])
    """

    values: NDArray[Any]
    row_splits: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    def __getitem__(self, row: int) -> NDArray[Any]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        return self.values[self.row_splits[row] : self.row_splits[row + 1]]

    @property
    def row_lengths(self) -> NDArray[np.int64]:
        """How many values each row has."""
        return np.diff(self.row_splits)

    def to_dense(self, default_value: Any) -> NDArray[Any]:
        """All rows as long as the longest, filled up with a value."""
        lengths = self.row_lengths
        dense = np.full((len(self), int(lengths.max(initial=0))), default_value, self.values.dtype)
        dense[np.arange(dense.shape[1]) < lengths[:, None]] = self.values
        return dense
