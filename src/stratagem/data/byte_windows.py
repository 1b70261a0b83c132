"""Many equally long parts of one buffer at once."""

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray


def windows(raw: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """All windows of `width` bytes, by their first byte; index with positions to copy those out as rows.

    Example:
        >>> windows(np.frombuffer(b"abcdef", np.uint8), 2)[[0, 3]].tobytes()
        b'abde'
    """
    return as_strided(raw, (max(0, len(raw) - width + 1), width), (1, 1), writeable=False)


def rows_of(raw: NDArray[np.uint8], starts: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """The parts as rows of a matrix: without a copy where they lie at even distances."""
    if len(starts) == 1:
        return raw[int(starts[0]) : int(starts[0]) + width].reshape(1, width)
    if len(starts) > 1:
        steps = np.diff(starts)
        step = int(steps[0])
        if step >= 0 and bool((steps == step).all()):
            return as_strided(raw[int(starts[0]) :], (len(starts), width), (step, 1), writeable=False)
    result: NDArray[np.uint8] = windows(raw, width)[starts]
    return result


def numbers_at(raw: NDArray[np.uint8], positions: NDArray[np.int64], dtype: str) -> NDArray[np.generic]:
    """Numbers that lie anywhere in a buffer, aligned or not."""
    width = np.dtype(dtype).itemsize
    return windows(raw, width)[positions].view(dtype).reshape(-1)
