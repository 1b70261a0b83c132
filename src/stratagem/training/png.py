"""Arrays as PNG files in memory: all that a picture in a summary needs, without an imaging library."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
"""PNG's number for grey, RGB and RGBA, by channels."""


def png(image: NDArray[np.uint8]) -> bytes:
    r"""Encode an image.

    Args:
        image: Height, width, and 1, 3 or 4 channels.

    Example:
        >>> png(np.zeros((2, 3, 1), np.uint8))[:4]
        b'\x89PNG'
    """
    height, width, channels = image.shape
    rows = np.ascontiguousarray(image).reshape(height, width * channels)
    unfiltered = np.pad(rows, ((0, 0), (1, 0)))  # before each row its filter: 0, none
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    return b"".join(
        [
            _SIGNATURE,
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(unfiltered.tobytes())),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
