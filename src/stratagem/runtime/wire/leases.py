"""Arrays of shared memory that are lent out: when the last of them is gone, their connection may be used again."""

import sys
from collections.abc import Callable

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
        """The same bytes, which keep the lease alive for as long as they or any view of them live."""
        return np.asarray(_Loan(array, self))

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ends():  # the modules that a pool needs are gone by then, and nobody calls any more
            self._over()


class _Loan:
    """What NumPy takes for the owner of lent memory."""

    __slots__ = ("__array_interface__", "_array", "_lease")

    def __init__(self, array: Array, lease: Lease) -> None:
        self._array = array
        self._lease = lease
        self.__array_interface__ = array.__array_interface__
