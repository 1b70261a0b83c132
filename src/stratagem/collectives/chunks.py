"""Cutting a stretch of bytes among workers, at boundaries that suit the processor."""

from itertools import pairwise
from typing import Final

BLOCK: Final = 64
"""A cache line. Every element size divides it, so that no element is ever cut."""


def aligned(offset: int) -> int:
    """The first block's boundary from here on."""
    return -(-offset // BLOCK) * BLOCK


def cut(start: int, stop: int, parts: int) -> list[tuple[int, int]]:
    """Cut the bytes from `start` to `stop` into parts that differ by at most one block.

    `start` lies on a block; only the last block may be incomplete. Earlier parts get the larger shares.

    Example:
        >>> cut(0, 200, 3)
        [(0, 128), (128, 192), (192, 200)]
    """
    blocks = -(-(stop - start) // BLOCK)
    share, extra = divmod(blocks, parts)
    bounds = [start + BLOCK * (share * part + min(part, extra)) for part in range(parts + 1)]
    return [(min(first, stop), min(last, stop)) for first, last in pairwise(bounds)]


def strides(start: int, stop: int, most: int) -> list[tuple[int, int]]:
    """Cut the same into as few nearly equal strides as possible, each of at most so many bytes, one at least.

    Example:
        >>> strides(0, 200, 128)
        [(0, 128), (128, 200)]
    """
    blocks, largest = -(-(stop - start) // BLOCK), max(1, most // BLOCK)
    return cut(start, stop, max(1, -(-blocks // largest)))
