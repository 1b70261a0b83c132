"""Digits as TFRecord files, for the classic scripts: MNIST or Fashion-MNIST from IDX files, else the embedded ones."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import stratagem as sg

CLASSES = 10


class Records:
    """Two TFRecord files, `train` and `test`, in a directory; they are written if they are not there.

    Args:
        directory: Where they are, those of each source in a directory of its own.
        idx_dir: Where `train-images-idx3-ubyte[.gz]` and the other three are; without it the embedded digits do.
    """

    def __init__(self, directory: str, idx_dir: str | None) -> None:
        self._directory = Path(directory) / (Path(idx_dir).resolve().name if idx_dir else "digits")
        self._directory.mkdir(parents=True, exist_ok=True)
        for name, prefix in (("train", "train"), ("test", "t10k")):
            if not self.path(name).exists():
                self._write(name, *(_from_idx(Path(idx_dir), prefix) if idx_dir else _embedded(name)))
        first = next(iter(sg.data.read_tfrecord(self.path("test"))))
        shape = sg.data.parse_example(first, {"shape": sg.data.FixedLenFeature((2,), np.int64)})["shape"]
        self._features = {
            "image": sg.data.RawFeature(tuple(int(side) for side in shape)),
            "label": sg.data.FixedLenFeature((), np.int64),
        }
        self.pixels = int(np.prod(shape))

    def path(self, name: str) -> Path:
        return self._directory / f"{name}.tfrecord"

    def batches(self, batch_size: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Shuffled training batches, without end."""

        def examples() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            while True:
                for images, labels in self._parsed("train"):
                    yield from zip(images, labels, strict=True)

        return sg.data.shuffle_batch(examples(), batch_size, capacity=4000, min_after_dequeue=1000, seed=seed)

    def test_set(self) -> tuple[np.ndarray, np.ndarray]:
        """All images and labels to test with."""
        images, labels = zip(*self._parsed("test"), strict=True)
        return np.concatenate(images), np.concatenate(labels)

    def _parsed(self, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for records in sg.data.read_tfrecord(self.path(name)).batches(256):
            parsed = sg.data.parse_example(records, self._features)
            images = parsed["image"].reshape(len(parsed["label"]), -1).astype(np.float32) / 255
            yield images, parsed["label"].astype(np.int32)

    def _write(self, name: str, images: np.ndarray, labels: np.ndarray) -> None:
        own = self.path(
            f"{name}-{os.getpid()}"
        )  # several workers may begin at once: each writes, the last one counts
        sg.data.write_tfrecord(
            own,
            (
                sg.data.make_example({"image": image.tobytes(), "shape": image.shape, "label": int(label)})
                for image, label in zip(images, labels, strict=True)
            ),
        )
        own.rename(self.path(name))


def _from_idx(directory: Path, prefix: str) -> tuple[np.ndarray, np.ndarray]:
    found = []
    for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        plain = directory / f"{prefix}-{kind}"
        found.append(sg.data.read_idx(plain if plain.exists() else f"{plain}.gz"))
    return found[0], found[1]


def _embedded(name: str) -> tuple[np.ndarray, np.ndarray]:
    digits = sg.data.load_digits()
    images = digits.train_images if name == "train" else digits.test_images
    labels = digits.train_labels if name == "train" else digits.test_labels
    return (images * 255).astype(np.uint8).reshape(-1, 8, 8), labels
