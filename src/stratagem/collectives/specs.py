"""What an array is, without its values: how workers tell each other what they are about to sum."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from stratagem.errors import StrategyError


@dataclass(frozen=True)
class ArraySpec:
    """The shape and dtype of an array.

    Example:
        >>> str(ArraySpec((784, 500), np.dtype(np.float32)))
        'float32[784, 500]'
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes its elements take."""
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@cache
def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which elements are added up before the sum is rounded, once, to their own.

    Floating point narrower than 32 bits is added up in float32, integers narrower than a byte in int32;
    everything else in its own dtype.

    Raises:
        StrategyError: Such elements cannot be summed.
    """
    if dtype.kind in "iuc" or dtype in (np.float32, np.float64):
        return dtype
    if dtype == np.float16 or dtype.name.startswith(("bfloat", "float")):
        return np.dtype(np.float32)
    if dtype.name.startswith(("int", "uint")):
        return np.dtype(np.int32)
    raise StrategyError(
        f"arrays of dtype {dtype} cannot be summed over workers; numbers can: cast it, to int32 for instance"
    )
