"""Arrays of shared memory that are lent out: when the last of them is gone, their connection may be used again."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from stratagem.runtime.wire.arrays import Array


class Lease:
    """Counts what is lent, by Python's own references: views of views, and what JAX reads in place, count too.

    Args:
        over: Called when nothing that was lent is in use any more, from whatever thread lets go of the last.
    """

    def __init__(self, over: Callable[[], None]) -> None:
        self._over = over

    def lent(self, array: Array) -> Array:
        """The same bytes, which keep the lease alive for as long as they or any view of them live.

        Args:
            array: All of a mapping, as `np.frombuffer` sees it.
        """
        # Of the mapping, not of the array: NumPy takes for the owner of a view's memory the last in a row of plain
        # arrays, and what it passes over may go.
        loan = _Loan(array.shape, array.dtype, array.base)
        loan.lease = self
        return loan

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ends():  # the modules that a pool needs are gone by then, and nobody calls any more
            self._over()


class _Loan(np.ndarray[Any, np.dtype[Any]]):
    """What NumPy takes for the owner of lent memory."""

    lease: Lease
