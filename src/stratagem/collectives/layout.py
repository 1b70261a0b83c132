"""Where every array of a sum lies in one stretch of bytes, and who sums which part of it when.

Pure, and computed by every worker for itself: the same arrays give the same layout everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from stratagem.collectives.chunks import aligned, cut, strides
from stratagem.collectives.specs import ArraySpec, sum_dtype

SHARE: Final = 4 << 20
"""Bytes that one worker sums at a time: more would leave the caches."""
WHOLE_UP_TO: Final = 64 << 10
"""So few bytes go from everybody to everybody at once: to wait a second time would cost more than to sum them."""


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


class Piece(NamedTuple):
    """A run of elements of one array, and where it lies in its chunk.

    Attributes:
        array: Which array.
        start: Its first element, in the flat array.
        stop: The element after its last.
        offset: Its first byte in the chunk.
        nbytes: How many bytes it has.
    """

    array: int
    start: int
    stop: int
    offset: int
    nbytes: int


class Chunk(NamedTuple):
    """A part of the stretch, which goes through a connection as one."""

    nbytes: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Layout:
    """All arrays of one sum in one stretch of bytes, each on a 64-byte boundary.

    Attributes:
        specs: The arrays.
        whole: All of it as one chunk.
        rounds: What goes round at once: for each round, the chunk that each worker sums for all.
        goes_whole: Whether everybody sends everything to everybody instead, and each sums for itself. Between two
            workers that is fewer bytes, and one wait instead of two.
    """

    specs: tuple[ArraySpec, ...]
    whole: Chunk
    rounds: tuple[tuple[Chunk, ...], ...]
    goes_whole: bool

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
        found = packs([spec.nbytes for spec in specs], bytes_per_pack)
        places: list[int] = []
        rounds: list[tuple[Chunk, ...]] = []
        end = 0
        for pack in found:
            start = end
            for index in pack:
                places.append(end)
                end = aligned(end + specs[index].nbytes)
            for low, high in strides(start, end, workers * share):
                rounds.append(tuple(_chunk(specs, places, *part) for part in cut(low, high, workers)))
        goes_whole = len(found) == 1 and (workers == 2 or end <= WHOLE_UP_TO)
        return cls(tuple(specs), _chunk(specs, places, 0, end), tuple(rounds), goes_whole)


def _chunk(specs: Sequence[ArraySpec], places: Sequence[int], start: int, stop: int) -> Chunk:
    """What lies between two bytes of the stretch."""
    pieces = []
    for index, place in enumerate(places):
        width = specs[index].dtype.itemsize
        low, high = max(start, place), min(stop, place + specs[index].nbytes)
        if low < high:
            pieces.append(
                Piece(index, (low - place) // width, (high - place) // width, low - start, high - low)
            )
    return Chunk(stop - start, tuple(pieces))
