"""Adds up what the workers have sent, always in the same order: the same bits everywhere and every time."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from stratagem.errors import StrategyError
from stratagem.runtime.wire.arrays import Array

_BLOCK: Final = 64 << 10
"""Elements at a time: a partial sum stays in the cache while the next worker's part is added to it."""


@cache
def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which elements are added up before the sum is rounded, once, to their own.

    Floating point narrower than 32 bits is added up in float32, integers narrower than a byte in int32,
    and everything else in its own dtype.

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


def sum_in_order(parts: Sequence[Array], out: Array) -> None:
    """Write the sum of flat arrays to `out`, from the first to the last; without any it is zero.

    Overflow gives infinity, as in XLA, and no warning.
    """
    if not parts:
        out.fill(0)
    elif len(parts) == 1:
        np.copyto(out, parts[0])
    elif sum_dtype(out.dtype) != out.dtype:
        with np.errstate(over="ignore", invalid="ignore"):
            _sum_wider(parts, out)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            # Two parts need no second pass, and so no blocks.
            _sum(parts, out, _BLOCK if len(parts) > 2 else max(1, out.size))


def _sum(parts: Sequence[Array], out: Array, step: int) -> None:
    for start in range(0, out.size, step):
        stop = start + step
        total = np.add(parts[0][start:stop], parts[1][start:stop], out=out[start:stop])
        for part in parts[2:]:
            total += part[start:stop]


def _sum_wider(parts: Sequence[Array], out: Array) -> None:
    wide = sum_dtype(out.dtype)
    for start in range(0, out.size, _BLOCK):
        stop = start + _BLOCK
        total = parts[0][start:stop].astype(wide)
        for part in parts[1:]:
            total += part[start:stop].astype(wide)
        out[start:stop] = total.astype(out.dtype)
