"""A parameter of a state whose values are on the servers: its value is read when somebody looks at it."""

from collections.abc import Callable
from typing import Any

import numpy as np


class ServedLeaf:
    """Stands for an array that lives elsewhere; `np.asarray` reads it.

    Args:
        shape: Its shape.
        dtype: Its dtype.
        read: Reads its present value.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, read: Callable[[], Any]) -> None:
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.ndim = len(self.shape)
        self._read = read

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self._read(), dtype)

    def __repr__(self) -> str:
        return f"ServedLeaf({self.dtype}{list(self.shape)}, on the servers: np.asarray reads it)"
