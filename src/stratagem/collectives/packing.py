"""Arrays of a layout brought into the form in which they are sent: small ones copied together."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem.collectives.layout import Layout, Piece
from stratagem.runtime.wire import empty_aligned
from stratagem.runtime.wire.arrays import Array


class Packing:
    """The buffers that small arrays are packed into, made once for a layout and filled for every all-reduce.

    Copied one by one with NumPy: joined inside a compiled step, XLA would fuse what computes them into the
    joining, which makes a step many times slower on CPU.
    """

    def __init__(self, layout: Layout) -> None:
        self._direct: list[tuple[int, int]] = []
        self._packed: list[tuple[Array, int]] = []
        self._buffers: list[Array] = []
        for number, region in enumerate(layout.regions):
            buffer = _zeros(region.dtype, 0 if region.is_direct else region.size)
            self._buffers.append(buffer)
            if region.is_direct:
                self._direct.append((number, region.arrays[0]))
                continue
            for index, offset in zip(region.arrays, region.offsets, strict=True):
                spec = layout.specs[index]
                self._packed.append((buffer[offset : offset + spec.size].reshape(spec.shape), index))

    def fill(self, arrays: Sequence[Array]) -> list[Array]:
        """A flat array for every region; it holds good until the next call, and while `arrays` do not change."""
        for target, index in self._packed:
            np.copyto(target, arrays[index])
        filled = list(self._buffers)
        for number, index in self._direct:
            filled[number] = arrays[index].reshape(-1)
        return filled


def pieces_of(filled: Sequence[Array], pieces: Sequence[Piece]) -> list[Array]:
    """Pieces of flat arrays, one for every region, as views."""
    return [filled[region][start:stop] for region, start, stop in pieces]


def _zeros(dtype: np.dtype[Any], size: int) -> Array:
    # The gaps between arrays are sent and summed along: they must hold numbers.
    buffer = empty_aligned(dtype, (size,), size * dtype.itemsize)
    buffer.fill(0)
    return buffer
