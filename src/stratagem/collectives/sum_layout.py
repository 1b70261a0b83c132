"""The layout of a sum: where each array lies in one stretch of bytes, and which worker sums which part of it.

Pure, and computed by every worker for itself: the same arrays give the same layout everywhere.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from stratagem.collectives.summation import sum_dtype
from stratagem.errors import ProtocolError
from stratagem.runtime.wire import empty_aligned
from stratagem.runtime.wire.arrays import Array

BLOCK: Final = 64
"""A cache line. Every element size divides it, so that no element is ever split."""
_SHARE: Final = 4 << 20
"""Bytes that one worker sums at a time: more would leave the caches."""
_ALL_TO_ALL_UP_TO: Final = 64 << 10
"""Sums of at most this many bytes go from every worker to every other: a second wait would cost more than the adding."""


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
    def nbytes(self) -> int:
        """The number of bytes that its elements take."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class ArraySlice(NamedTuple):
    """A run of elements of one array, and where it lies in its chunk.

    Attributes:
        array: The index of the array.
        start: Its first element, in the flat array.
        stop: The element after its last.
        offset: Its first byte in the chunk.
        nbytes: Its number of bytes.
    """

    array: int
    start: int
    stop: int
    offset: int
    nbytes: int


class Chunk(NamedTuple):
    """A part of the stretch, which is sent as one tensor."""

    nbytes: int
    slices: tuple[ArraySlice, ...]


@dataclass(frozen=True)
class SumLayout:
    """All arrays of one sum in one stretch of bytes, each on a 64-byte boundary.

    Attributes:
        specs: The arrays.
        whole: The whole stretch as one chunk.
        rounds: For each round of a reduce-scatter, the chunk that each worker sums for all.
        is_all_to_all: Whether every worker sends everything to every other instead, and each sums for itself. Between
            two workers that is fewer bytes, and one wait instead of two.
    """

    specs: tuple[ArraySpec, ...]
    whole: Chunk
    rounds: tuple[tuple[Chunk, ...], ...]
    is_all_to_all: bool

    @classmethod
    def plan(
        cls, specs: Sequence[ArraySpec], workers: int, bytes_per_pack: int = 0, share: int = _SHARE
    ) -> "SumLayout":
        """Lay out arrays that a number of workers are to sum.

        Raises:
            StrategyError: An array's elements cannot be summed.
        """
        for spec in specs:
            sum_dtype(spec.dtype)
        packs = packs_of([spec.nbytes for spec in specs], bytes_per_pack)
        offsets: list[int] = []
        rounds: list[tuple[Chunk, ...]] = []
        end = 0
        for pack in packs:
            start = end
            for index in pack:
                offsets.append(end)
                end = -(-(end + specs[index].nbytes) // BLOCK) * BLOCK
            for low, high in strides(start, end, workers * share):
                rounds.append(tuple(_chunk(specs, offsets, *part) for part in split(low, high, workers)))
        is_all_to_all = len(packs) == 1 and (workers == 2 or end <= _ALL_TO_ALL_UP_TO)
        return cls(tuple(specs), _chunk(specs, offsets, 0, end), tuple(rounds), is_all_to_all)

    # ------------------------------------------------------ arrays in the bytes of a chunk

    def slices_in(self, buffer: Array, chunk: Chunk) -> list[Array]:
        """Return the slices of a chunk as flat arrays that lie in its bytes."""
        specs = self.specs
        return [
            buffer[piece.offset : piece.offset + piece.nbytes].view(specs[piece.array].dtype)
            for piece in chunk.slices
        ]

    def arrays_in(self, buffer: Array) -> list[Array]:
        """Return all arrays, in their shapes, as they lie in the bytes of the whole stretch."""
        specs = self.specs
        arrays: list[Array | None] = [None] * len(specs)
        for piece, flat in zip(self.whole.slices, self.slices_in(buffer, self.whole), strict=True):
            arrays[piece.array] = flat.reshape(specs[piece.array].shape)
        # Arrays without an element lie nowhere.
        return [
            np.empty(spec.shape, spec.dtype) if array is None else array
            for spec, array in zip(specs, arrays, strict=True)
        ]

    def fill(self, buffer: Array, chunk: Chunk, flats: Sequence[Array]) -> Array:
        """Copy what belongs to a chunk from flat arrays to its bytes, and return these."""
        for piece, target in zip(chunk.slices, self.slices_in(buffer, chunk), strict=True):
            np.copyto(target, flats[piece.array][piece.start : piece.stop])
        return buffer


def new_buffer(chunk: Chunk) -> Array:
    """Return memory for a chunk."""
    return empty_aligned(np.dtype(np.uint8), (chunk.nbytes,), chunk.nbytes)


def chunk_bytes(tensors: Sequence[Array], chunk: Chunk) -> Array:
    """Return the bytes of a chunk from another worker's message.

    Raises:
        ProtocolError: The message holds something else.
    """
    if len(tensors) != 1 or tensors[0].dtype != np.uint8 or tensors[0].shape != (chunk.nbytes,):
        shapes = [f"{tensor.dtype}{list(tensor.shape)}" for tensor in tensors]
        raise ProtocolError(f"a chunk of {chunk.nbytes} bytes was announced, and {shapes} came")
    return tensors[0]


def packs_of(sizes: Sequence[int], bytes_per_pack: int) -> list[list[int]]:
    """Divide arrays, by index, into packs: a new pack opens when the last exceeds this many bytes.

    This is TensorFlow's rule: arrays stay in order, and zero means one pack.

    Example:
        >>> packs_of([10, 10, 10, 50], bytes_per_pack=15)
        [[0, 1], [2, 3]]
    """
    packs: list[list[int]] = [[]]
    nbytes = 0
    for index, size in enumerate(sizes):
        if bytes_per_pack and nbytes > bytes_per_pack:
            packs.append([])
            nbytes = 0
        packs[-1].append(index)
        nbytes += size
    return packs


def split(start: int, stop: int, parts: int) -> list[tuple[int, int]]:
    """Split the bytes from `start` to `stop` into parts that differ by at most one block.

    `start` lies on a block; only the last block may be incomplete. Earlier parts get the larger shares.

    Example:
        >>> split(0, 200, 3)
        [(0, 128), (128, 192), (192, 200)]
    """
    blocks = -(-(stop - start) // BLOCK)
    share, extra = divmod(blocks, parts)
    bounds = [start + BLOCK * (share * part + min(part, extra)) for part in range(parts + 1)]
    return [(min(first, stop), min(last, stop)) for first, last in pairwise(bounds)]


def strides(start: int, stop: int, most: int) -> list[tuple[int, int]]:
    """Split bytes into as few nearly equal strides as possible, at least one, each of at most `most` bytes.

    Example:
        >>> strides(0, 200, 128)
        [(0, 128), (128, 200)]
    """
    blocks, largest = -(-(stop - start) // BLOCK), max(1, most // BLOCK)
    return split(start, stop, max(1, -(-blocks // largest)))


def _chunk(specs: Sequence[ArraySpec], offsets: Sequence[int], start: int, stop: int) -> Chunk:
    """Return what lies between two bytes of the stretch."""
    slices = []
    for index, offset in enumerate(offsets):
        width = specs[index].dtype.itemsize
        low, high = max(start, offset), min(stop, offset + specs[index].nbytes)
        if low < high:
            slices.append(
                ArraySlice(index, (low - offset) // width, (high - offset) // width, low - start, high - low)
            )
    return Chunk(stop - start, tuple(slices))
