"""A small data set that ships with the package: 1,797 handwritten digits of 8×8 pixels.

Optical Recognition of Handwritten Digits by E. Alpaydin and C. Kaynak, UCI Machine Learning Repository,
licensed CC BY 4.0; the part that scikit-learn includes, with pixel values 0 to 16 as bytes.
"""

from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

_TEST_EVERY = 5


@dataclass(frozen=True)
class Digits:
    """Images as float32 rows of 64 pixels between 0 and 1, labels as int32."""

    train_images: NDArray[np.float32]
    train_labels: NDArray[np.int32]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int32]


def load_digits() -> Digits:
    """Load the digits; every fifth one is for testing (1,438 to train, 359 to test).

    Example:
        >>> digits = load_digits()
        >>> digits.train_images.shape, digits.test_labels.shape
        ((1438, 64), (359,))
    """
    with files("stratagem.data").joinpath("digits.npz").open("rb") as file, np.load(file) as stored:
        images = stored["images"].reshape(-1, 64).astype(np.float32) / 16
        labels = stored["labels"].astype(np.int32)
    is_test = np.arange(len(labels)) % _TEST_EVERY == _TEST_EVERY - 1
    return Digits(images[~is_test], labels[~is_test], images[is_test], labels[is_test])
