"""Fashion-MNIST as Debian's package `dataset-fashion-mnist` installs it, for the comparison of accuracies."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.racing.conversation import Absent
from benchmarks.racing.work import ROWS_PER_REPLICA, SEED, Labels, Pictures

FOLDER = Path("/usr/share/datasets/fashion-mnist")
_HEADERS = {"images": 16, "labels": 8}


def training_batches(worker: int) -> Iterator[tuple[Pictures, Labels]]:
    """Yield batches without end, in an order of each worker's own."""
    pictures, labels = _read("train")
    random = np.random.default_rng((SEED, worker))
    while True:
        order = random.permutation(len(labels))
        for rows in order.reshape(-1, ROWS_PER_REPLICA):
            yield pictures[rows], labels[rows]


def test_set() -> tuple[Pictures, Labels]:
    """Return all of the 10,000 pictures that are not for training."""
    return _read("t10k")


def _read(part: str) -> tuple[Pictures, Labels]:
    if not FOLDER.exists():
        raise Absent(f"there is no {FOLDER}: apt-get install dataset-fashion-mnist")
    pictures, labels = (
        np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=offset)
        for kind, offset in _HEADERS.items()
        for path in FOLDER.glob(f"{part}-{kind}-*.gz")
    )
    scaled = np.divide(pictures.reshape(len(labels), -1), 255, dtype=np.float32)
    return scaled, labels.astype(np.int32)
