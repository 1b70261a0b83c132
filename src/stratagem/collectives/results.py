"""Memory for sums: used again as soon as nobody holds an array that lies in it."""

import sys

import numpy as np

from stratagem.collectives.layout import Layout
from stratagem.collectives.packing import pieces_of
from stratagem.runtime.wire.arrays import ALIGNMENT, Array

_MOST_KEPT = 3


class Sums:
    """Memory for the sums of a layout, as arrays to write to and as arrays to hand out.

    Attributes:
        pieces: For each round and worker, where the sums go that this worker computes.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._owner = np.empty(layout.nbytes + ALIGNMENT, np.uint8)
        start = -self._owner.__array_interface__["data"][0] % ALIGNMENT
        self._raw = self._owner[start : start + layout.nbytes]
        flat = [self._raw[region.start : region.stop].view(region.dtype) for region in layout.regions]
        self.pieces = [[pieces_of(flat, each) for each in workers] for workers in layout.rounds]
        del flat
        self._own_references = sys.getrefcount(self._owner)

    @property
    def is_free(self) -> bool:
        """Whether nobody holds an array that was handed out.

        Each of them is a view, which holds a reference to its memory for as long as it lives, also when it is
        JAX that reads it in place.
        """
        return sys.getrefcount(self._owner) <= self._own_references

    def arrays(self) -> list[Array]:
        """The sums as arrays of the layout's shapes. Not to be written to: some may still be on their way out."""
        found = []
        for spec, (start, stop) in zip(self._layout.specs, self._layout.places, strict=True):
            array = self._raw[start:stop].view(spec.dtype).reshape(spec.shape)
            array.flags.writeable = False
            found.append(array)
        return found


class Memory:
    """The memory of one layout's sums: new memory would have to be mapped page by page every time."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._kept: list[Sums] = []

    def take(self) -> Sums:
        """Memory that nobody uses, with anything in it."""
        for sums in self._kept:
            if sums.is_free:
                return sums
        self._kept = [*self._kept[-_MOST_KEPT + 1 :], Sums(self._layout)]
        return self._kept[-1]
