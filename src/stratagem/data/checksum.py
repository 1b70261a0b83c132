"""The checksum of TFRecord files: CRC-32C, rotated and shifted ("masked").

The package google-crc32c uses the processor's own instruction; where it is missing NumPy does the same, in about
five times the time.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from stratagem.data import castagnoli

_DELTA = 0xA282EAD8


def _compiled() -> Callable[[bytes], int] | None:
    if find_spec("google_crc32c") is None:
        return None
    module = import_module("google_crc32c")
    if module.implementation != "c":  # its Python version is slower than ours
        return None
    value: Callable[[bytes], int] = module.value
    return value


_VALUE = _compiled()
crc32c: Callable[[bytes], int] = _VALUE or castagnoli.crc32c
"""The CRC-32C of bytes, by the quickest means there is."""


def masked_crc32c(data: bytes) -> int:
    """The masked CRC-32C of bytes.

    Example:
        >>> hex(masked_crc32c(b"123456789"))
        '0xc78ab0e5'
    """
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _DELTA) & 0xFFFFFFFF


def masked_crc32c_of_each(
    buffer: bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """The masked CRC-32C of many parts of a buffer."""
    if _VALUE is None:
        return _masked(castagnoli.crc32c_of_each(buffer, starts, lengths))
    value = _VALUE
    parts = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return _masked(np.array([value(buffer[start:end]) for start, end in parts], np.uint32))


def masked_crc32c_of_lengths(lengths: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """The masked CRC-32C of numbers as they stand before each record."""
    return _masked(castagnoli.crc32c_of_words(lengths))


def _masked(crc: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(_DELTA)
