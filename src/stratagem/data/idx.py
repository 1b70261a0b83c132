"""IDX files, the format of MNIST and its kin: a big-endian array behind a short header, often in gzip."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratagem.data.compression import Inflated, Stream, is_gzip, opened
from stratagem.errors import DataError

_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CHUNK = 1 << 22


def read_idx(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Read an IDX file, compressed with gzip or not, as an array of the file's shape and type.

    Raises:
        DataError: If it is no IDX file, or has fewer or more bytes than its shape takes.

    Example:
        >>> import pathlib
        >>> _ = pathlib.Path("labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
        >>> read_idx("labels-idx1-ubyte")
        array([7, 2, 1], dtype=uint8)
    """
    path = Path(path)
    with opened(path) as file:
        is_compressed = is_gzip(file.read(2))
        file.seek(0)
        stream: Stream = Inflated(file, "gzip", path) if is_compressed else file
        magic = _read(stream, 4)
        if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _DTYPES:
            codes = ", ".join(f"{code:#04x}" for code in _DTYPES)
            raise DataError(
                f"{path} begins with {magic.hex() or 'nothing'}; an IDX file begins with 0000, one of {codes} for "
                f"its type, and its number of axes: check that this is the right file"
            )
        dtype, axes = np.dtype(_DTYPES[magic[2]]), magic[3]
        header = _read(stream, 4 * axes)
        if len(header) < 4 * axes:
            raise DataError(f"{path}: the file ends within the header of {axes} sizes; copy or fetch it anew")
        shape = tuple(np.frombuffer(header, ">u4").tolist())
        wanted = math.prod(shape) * dtype.itemsize
        # One byte more than wanted tells whether something follows.
        data = _read(stream, wanted + 1)
    if len(data) != wanted:
        got = f"only {len(data)}" if len(data) < wanted else "more"
        raise DataError(
            f"{path}: shape {shape} of {dtype.name} takes {wanted} bytes after the header, and the file has {got}; "
            f"it is damaged or cut short: copy or fetch it anew"
        )
    try:
        return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="))
    except ValueError as error:
        raise DataError(f"{path}: shape {shape} is none that NumPy can hold ({error})") from error


def _read(stream: Stream, count: int) -> bytearray:
    """So many bytes, or all there are; memory is taken as they come, not as the header announces them."""
    data = bytearray()
    while len(data) < count and (part := stream.read(min(_CHUNK, count - len(data)))):
        data += part
    return data
