"""Images and labels in IDX files, as TFRecord files of Examples."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stratagem.data.example_writing import make_example
from stratagem.data.idx import read_idx
from stratagem.data.tfrecord_writer import write_tfrecord
from stratagem.errors import DataError


def shard_paths(output: Path, shards: int) -> list[Path]:
    """The files that a data set is written to: one under its own name, or several with numbers.

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
        How many, and the shape and dtype of one image, for `RawFeature`.
    """
    pictures, numbers = read_idx(images), read_idx(labels)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise DataError(
            f"{labels} has {numbers.dtype} of shape {numbers.shape}; labels are whole numbers, one per image: "
            f"give the images first, then the labels"
        )
    if pictures.ndim < 2 or len(pictures) != len(numbers):
        raise DataError(
            f"{images} has shape {pictures.shape}, {labels} has {len(numbers)} labels; give two files that belong "
            f"together, images first"
        )
    stored = pictures.dtype.newbyteorder("<")
    bounds = np.linspace(0, len(numbers), len(outputs) + 1).astype(int).tolist()
    for path, first, last in zip(outputs, bounds[:-1], bounds[1:], strict=True):
        write_tfrecord(
            path,
            (
                make_example({"image": pictures[at].astype(stored).tobytes(), "label": numbers[at]})
                for at in range(first, last)
            ),
            compression=compression,
        )
    return len(numbers), pictures.shape[1:], pictures.dtype
