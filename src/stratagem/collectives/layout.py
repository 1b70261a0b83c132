"""Where every array of an all-reduce lies in one stretch of bytes, and who sums which part of it when.

Pure, and computed by every worker for itself: the same arrays give the same layout everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from stratagem.collectives.chunks import BLOCK, cut, strides
from stratagem.collectives.specs import ArraySpec, sum_dtype

DIRECT_FROM: Final = 128 << 10
"""Arrays of so many bytes are sent from where they are; to copy them into a pack first would cost more."""
SHARE: Final = 4 << 20
"""Bytes that one worker sums at a time: fewer are not worth sharing out, and more would leave the caches."""


def packs(sizes: Sequence[int], bytes_per_pack: int) -> list[list[int]]:
    """Arrays, by index, that go together: a new pack opens when the last exceeds so many bytes.

    This is TensorFlow's rule: arrays stay in order, and zero means one pack.

    Example:
        >>> packs([10, 10, 10, 50], bytes_per_pack=15)
        [[0, 1], [2, 3]]
    """
    found: list[list[int]] = [[]]
    nbytes = 0
    for index, size in enumerate(sizes):
        if bytes_per_pack and nbytes > bytes_per_pack:
            found.append([])
            nbytes = 0
        found[-1].append(index)
        nbytes += size
    return found


class Region(NamedTuple):
    """A run of the layout with one dtype, which is one flat array to those who fill, send and sum it.

    Attributes:
        arrays: Which arrays lie in it, by index.
        offsets: Where each of them begins, in elements from the region's start.
        start: Its first byte in the layout, on a block.
        size: Its length in elements.
        is_direct: Whether it is a single array that needs no packing.
    """

    dtype: np.dtype[Any]
    arrays: tuple[int, ...]
    offsets: tuple[int, ...]
    start: int
    size: int
    is_direct: bool

    @property
    def stop(self) -> int:
        """The byte after its last."""
        return self.start + self.size * self.dtype.itemsize


class Piece(NamedTuple):
    """A part of a region, in elements from the region's start."""

    region: int
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """All arrays of one all-reduce in one stretch of bytes, each on a 64-byte boundary.

    Attributes:
        specs: The arrays.
        regions: What is filled and sent as one, pack by pack.
        rounds: What goes round at once: for each round, the pieces that each worker sums. Those who sum
            something are the first ones, as many as there are shares; the others have nothing but to send.
        nbytes: Length of the stretch.
    """

    specs: tuple[ArraySpec, ...]
    regions: tuple[Region, ...]
    rounds: tuple[tuple[tuple[Piece, ...], ...], ...]
    nbytes: int

    @classmethod
    def plan(
        cls,
        specs: Sequence[ArraySpec],
        workers: int,
        bytes_per_pack: int = 0,
        share: int = SHARE,
    ) -> "Layout":
        """The layout of these arrays, to be summed by so many workers.

        Raises:
            StrategyError: An array of elements that cannot be summed.
        """
        for spec in specs:
            sum_dtype(spec.dtype)
        regions: list[Region] = []
        rounds: list[tuple[tuple[Piece, ...], ...]] = []
        end = 0
        for pack in packs([spec.nbytes for spec in specs], bytes_per_pack):
            first, start = len(regions), end
            regions += _regions(specs, pack, start)
            end = _aligned(regions[-1].stop) if len(regions) > first else start
            stop = regions[-1].stop if len(regions) > first else start
            for low, high in strides(start, stop, workers * share):
                owners = max(1, min(workers, -(-(high - low) // share)))
                owned = [_pieces(regions, first, *chunk) for chunk in cut(low, high, owners)]
                rounds.append((*owned, *[()] * (workers - owners)))
        return cls(tuple(specs), tuple(regions), tuple(rounds), end)

    @cached_property
    def owners(self) -> tuple[tuple[int, ...], ...]:
        """Who sums something in each round; the first worker, if there is nothing to sum."""
        return tuple(
            tuple(worker for worker, owned in enumerate(pieces) if owned) or (0,) for pieces in self.rounds
        )

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """The first byte of every array in the layout, and the one after its last."""
        found = {
            array: region.start + offset * region.dtype.itemsize
            for region in self.regions
            for array, offset in zip(region.arrays, region.offsets, strict=True)
        }
        return tuple((found[index], found[index] + spec.nbytes) for index, spec in enumerate(self.specs))


def _regions(specs: Sequence[ArraySpec], pack: Sequence[int], start: int) -> list[Region]:
    """The regions of one pack: each large array its own, small ones together by dtype, after those."""
    regions: list[Region] = []
    small: dict[np.dtype[Any], list[int]] = {}
    for index in pack:
        spec = specs[index]
        if spec.nbytes >= DIRECT_FROM:
            regions.append(Region(spec.dtype, (index,), (0,), start, spec.size, True))
            start = _aligned(regions[-1].stop)
        else:
            small.setdefault(spec.dtype, []).append(index)
    for dtype, arrays in small.items():
        offsets, size = [], 0
        for index in arrays:
            offsets.append(_aligned(size * dtype.itemsize) // dtype.itemsize)
            size = offsets[-1] + specs[index].size
        regions.append(Region(dtype, tuple(arrays), tuple(offsets), start, size, False))
        start = _aligned(regions[-1].stop)
    return regions


def _pieces(regions: Sequence[Region], first: int, start: int, stop: int) -> tuple[Piece, ...]:
    """The pieces of regions, from the given one on, that lie between two bytes."""
    found = []
    for index in range(first, len(regions)):
        region = regions[index]
        low, high = max(start, region.start), min(stop, region.stop)
        if low < high:
            width = region.dtype.itemsize
            found.append(Piece(index, (low - region.start) // width, (high - region.start) // width))
    return tuple(found)


def _aligned(offset: int) -> int:
    return -(-offset // BLOCK) * BLOCK
