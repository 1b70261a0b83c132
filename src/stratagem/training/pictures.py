"""What users call an image, in any of its usual shapes and types, as a list of 8-bit images."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratagem.errors import DataError

_CHANNELS = (1, 3, 4)
_SHAPES = "(height, width), (height, width, channels) or (images, height, width, channels)"


def pictures(values: Any) -> list[NDArray[np.uint8]]:
    """The images of an array, each of height, width and channels.

    Args:
        values: One image or several: integers 0 to 255, booleans, or floats 0 to 1. Three axes are one image if the
            last has 1, 3 or 4 entries, else several grey ones.

    Example:
        >>> [image.shape for image in pictures(np.zeros((5, 28, 28)))]
        [(28, 28, 1), (28, 28, 1), (28, 28, 1), (28, 28, 1), (28, 28, 1)]
    """
    array = np.asarray(values)
    if array.ndim == 2:
        array = array[None, :, :, None]
    elif array.ndim == 3:
        array = array[None] if array.shape[-1] in _CHANNELS else array[..., None]
    if array.ndim != 4 or array.shape[-1] not in _CHANNELS or 0 in array.shape:
        raise DataError(f"an image of shape {np.shape(values)}; give {_SHAPES}, with 1, 3 or 4 channels")
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
            f"an image of {array.dtype}; give integers 0 to 255, booleans, or floats 0 to 1"
        ) from None
    scaled: NDArray[np.float32] = np.rint(np.clip(np.nan_to_num(numbers), 0, 1) * 255)
    return scaled.astype(np.uint8)
