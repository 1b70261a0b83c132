"""The values of summaries: histograms, images in the PNG format, and Markdown tables."""

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stratagem.cluster import ClusterSpec
from stratagem.errors import DataError

BUCKETS = 64
_CHANNELS = (1, 3, 4)
_SHAPES = "(height, width), (height, width, channels) or (images, height, width, channels)"
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
"""PNG's number for grey, RGB and RGBA, by channels."""

# Histograms.


@dataclass(frozen=True)
class Histogram:
    """Counts of values in buckets.

    Attributes:
        limits: The upper limit of each bucket.
        counts: The number of values in each.
        minimum: The smallest value.
        maximum: The largest.
        total: The sum of the values.
        squares: The sum of their squares.
        not_finite: The number of further values, which are NaN or infinite.
    """

    limits: tuple[float, ...]
    counts: tuple[float, ...]
    minimum: float
    maximum: float
    total: float
    squares: float
    not_finite: int = 0


def histogram_of(values: Any) -> Histogram:
    """Count the values of an array in buckets of equal width.

    Example:
        >>> spread = histogram_of([0.0, 1.0, 1.0, float("nan")])
        >>> sum(spread.counts), spread.maximum, spread.not_finite
        (3.0, 1.0, 1)
    """
    array = np.asarray(values).reshape(-1)
    try:
        numbers = array.astype(np.float64)
    except (TypeError, ValueError):
        raise DataError(f"the values of a histogram are of type {array.dtype}; give numbers") from None
    finite = numbers[np.isfinite(numbers)]
    missing = len(numbers) - len(finite)
    if not len(finite):
        return Histogram((), (), 0.0, 0.0, 0.0, 0.0, missing)
    low, high = float(finite.min()), float(finite.max())
    width = high / BUCKETS - low / BUCKETS
    if width > np.spacing(max(-low, high)) and np.isfinite(high - low):
        counts, edges = np.histogram(finite, BUCKETS, (low, high))
        limits = edges[1:]
    else:  # too narrow to be divided in floating point
        limits, counts = np.array([high]), np.array([len(finite)])
    with np.errstate(over="ignore"):
        total, squares = float(finite.sum()), float(np.square(finite).sum())
    return Histogram(
        tuple(limits.tolist()),
        tuple(counts.astype(np.float64).tolist()),
        low,
        high,
        total,
        squares,
        missing,
    )


def histogram_of_counts(counts: Mapping[int, int]) -> Histogram:
    """Return the histogram of whole numbers that have been counted already, with a bucket for each number.

    Example:
        >>> histogram_of_counts({0: 9, 2: 1}).counts
        (9.0, 0.0, 1.0)
    """
    present = {number: count for number, count in counts.items() if count > 0}
    if not present:
        return Histogram((), (), 0.0, 0.0, 0.0, 0.0)
    low, high = min(present), max(present)
    numbers = range(low, high + 1)
    return Histogram(
        tuple(number + 0.5 for number in numbers),
        tuple(float(present.get(number, 0)) for number in numbers),
        low,
        high,
        float(sum(number * count for number, count in present.items())),
        float(sum(number * number * count for number, count in present.items())),
    )


# Images.


def as_images(values: Any) -> list[NDArray[np.uint8]]:
    """Return the images of an array as 8-bit images of height, width and channels.

    Args:
        values: One image or several: integers 0 to 255, booleans, or floats 0 to 1. An array of three axes is one image
            if the last axis has 1, 3 or 4 entries, else several grey images.

    Example:
        >>> [image.shape for image in as_images(np.zeros((5, 28, 28)))]
        [(28, 28, 1), (28, 28, 1), (28, 28, 1), (28, 28, 1), (28, 28, 1)]
    """
    array = np.asarray(values)
    if array.ndim == 2:
        array = array[None, :, :, None]
    elif array.ndim == 3:
        array = array[None] if array.shape[-1] in _CHANNELS else array[..., None]
    if array.ndim != 4 or array.shape[-1] not in _CHANNELS or 0 in array.shape:
        raise DataError(
            f"the shape of an image is {np.shape(values)}; give {_SHAPES}, with 1, 3 or 4 channels"
        )
    return list(_as_bytes(array))


def _as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return array.view(np.uint8)
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if np.issubdtype(array.dtype, np.integer):
        clipped: NDArray[np.integer[Any]] = np.clip(array, 0, 255)
        return clipped.astype(np.uint8)
    try:
        numbers = array.astype(np.float32)
    except (TypeError, ValueError):
        raise DataError(
            f"an image is of type {array.dtype}; give integers 0 to 255, booleans, or floats 0 to 1"
        ) from None
    scaled: NDArray[np.float32] = np.rint(np.clip(np.nan_to_num(numbers), 0, 1) * 255)
    return scaled.astype(np.uint8)


def encode_png(image: NDArray[np.uint8]) -> bytes:
    r"""Encode an image as a PNG file in memory, without an imaging library.

    Args:
        image: Height, width, and 1, 3 or 4 channels.

    Example:
        >>> encode_png(np.zeros((2, 3, 1), np.uint8))[:4]
        b'\x89PNG'
    """
    height, width, channels = image.shape
    rows = np.ascontiguousarray(image).reshape(height, width * channels)
    unfiltered = np.pad(rows, ((0, 0), (1, 0)))  # the filter before each row: 0 for none
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    return b"".join(
        [
            _PNG_SIGNATURE,
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(unfiltered.tobytes())),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


# Tables, which TensorBoard shows among its texts.


class HasDevice(Protocol):
    """A variable that knows its device."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> object: ...


def cluster_table(cluster: ClusterSpec) -> str:
    """Return a Markdown table of every task and its address.

    Example:
        >>> print(cluster_table(ClusterSpec({"worker": ["a:2222"]})))
        | task | address |
        | --- | --- |
        | /job:worker/task:0 | a:2222 |
    """
    return _table(
        ("task", "address"),
        (
            (f"/job:{job}/task:{index}", cluster.task_address(job, index))
            for job in cluster.jobs
            for index in cluster.task_indices(job)
        ),
    )


def placement_table(placement: Mapping[str, Any] | Iterable[HasDevice]) -> str:
    """Return a Markdown table of every variable and the device that holds it.

    Example:
        >>> print(placement_table({"w": "/job:ps/task:0/device:CPU:0"}))
        | variable | device |
        | --- | --- |
        | w | /job:ps/task:0/device:CPU:0 |
    """
    rows = (
        list(placement.items())
        if isinstance(placement, Mapping)
        else [(each.name, each.device) for each in placement]
    )
    for name, device in rows:
        if hasattr(device, "shape"):
            raise DataError(
                f"{name} is an array, where its device was expected; strategy.placement(state) returns the device of "
                "each parameter"
            )
    return _table(("variable", "device"), rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '&#124;') for cell in line)} |" for line in lines)
