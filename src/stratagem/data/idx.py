"""IDX files, the format of MNIST: a big-endian array behind a short header, often in gzip; and as TFRecord files."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratagem.data.compression import InflatedStream, is_gzip, open_unbuffered
from stratagem.data.example_writing import make_example
from stratagem.data.tfrecord_frames import ByteStream
from stratagem.data.tfrecord_writer import write_tfrecord
from stratagem.errors import DataError

_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CHUNK = 1 << 22


def read_idx(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Read an IDX file, compressed with gzip or not, as an array of the file's shape and type.

    Raises:
        DataError: It is not an IDX file, or has fewer or more bytes than its shape takes.

    Example:
        >>> import pathlib
        >>> _ = pathlib.Path("labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
        >>> read_idx("labels-idx1-ubyte")
        array([7, 2, 1], dtype=uint8)
    """
    path = Path(path)
    with open_unbuffered(path) as file:
        is_compressed = is_gzip(file.read(2))
        file.seek(0)
        stream: ByteStream = InflatedStream(file, "gzip", path) if is_compressed else file
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
        expected = math.prod(shape) * dtype.itemsize
        # One byte more tells whether something follows.
        data = _read(stream, expected + 1)
    if len(data) != expected:
        got = f"only {len(data)}" if len(data) < expected else "more"
        raise DataError(
            f"{path}: shape {shape} of {dtype.name} takes {expected} bytes after the header, and the file has {got}; "
            f"it is damaged or cut short: copy or fetch it anew"
        )
    try:
        return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="))
    except ValueError as error:
        raise DataError(f"{path}: shape {shape} cannot be an array of NumPy's ({error})") from error


def _read(stream: ByteStream, count: int) -> bytearray:
    """Return `count` bytes, or all there are; memory is allocated as they come, not as the header announces them."""
    data = bytearray()
    while len(data) < count and (part := stream.read(min(_CHUNK, count - len(data)))):
        data += part
    return data


def shard_paths(output: Path, shards: int) -> list[Path]:
    """Return the files that a data set is written to: one under its own name, or several with numbers.

    Example:
        >>> [path.name for path in shard_paths(Path("train"), 2)]
        ['train-00000-of-00002', 'train-00001-of-00002']
    """
    if shards == 1:
        return [output]
    return [output.with_name(f"{output.name}-{shard:05d}-of-{shards:05d}") for shard in range(shards)]


def idx_to_tfrecord(
    images: Path, labels: Path, outputs: Sequence[Path], *, compression: str | None = None
) -> tuple[int, tuple[int, ...], np.dtype[np.generic]]:
    """Write each image with its label as an Example: `image`, its raw little-endian bytes, and `label`.

    Returns:
        The number of images, and the shape and dtype of one, for `RawFeature`.
    """
    image_array, label_array = read_idx(images), read_idx(labels)
    if label_array.ndim != 1 or label_array.dtype.kind not in "iu":
        raise DataError(
            f"{labels} has {label_array.dtype} of shape {label_array.shape}; labels are whole numbers, one per image: "
            f"give the images first, then the labels"
        )
    if image_array.ndim < 2 or len(image_array) != len(label_array):
        raise DataError(
            f"{images} has shape {image_array.shape}, {labels} has {len(label_array)} labels; give two files that belong "
            f"together, images first"
        )
    stored_dtype = image_array.dtype.newbyteorder("<")
    bounds = np.linspace(0, len(label_array), len(outputs) + 1).astype(int).tolist()
    for path, first, last in zip(outputs, bounds[:-1], bounds[1:], strict=True):
        write_tfrecord(
            path,
            (
                make_example(
                    {"image": image_array[at].astype(stored_dtype).tobytes(), "label": label_array[at]}
                )
                for at in range(first, last)
            ),
            compression=compression,
        )
    return len(label_array), image_array.shape[1:], image_array.dtype
