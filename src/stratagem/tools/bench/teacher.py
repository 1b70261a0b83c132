"""Examples that can be learned: a random teacher network labels inputs that lie near a few directions. All from a seed."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Examples = tuple[NDArray[np.float32], NDArray[np.int32]]

SEED = 0
_POOL_BYTES = 64 << 20
_MOST_ROWS, _TEST_ROWS = 20_000, 2_000
_DIRECTIONS, _HIDDEN = 16, 32
_NOISE = 0.3
_SQUARED_LENGTH = 64.0
"""Of an input, about: as that of a picture of Fashion-MNIST, so that one learning rate suits all widths."""


class Teacher:
    """Makes examples of a classification.

    Args:
        inputs: The width of an example.
        classes: How many labels there are.
    """

    def __init__(self, inputs: int, classes: int) -> None:
        random = np.random.default_rng(SEED)
        self._inputs = inputs
        self._spread = random.standard_normal((_DIRECTIONS, inputs), np.float32)
        self._first = random.standard_normal((_DIRECTIONS, _HIDDEN), np.float32)
        self._second = random.standard_normal((_HIDDEN, classes), np.float32)

    def examples(self, rows: int, seed: int) -> Examples:
        """So many examples; others for another seed."""
        random = np.random.default_rng((SEED, seed))
        causes = random.standard_normal((rows, _DIRECTIONS), np.float32)
        seen = causes @ self._spread
        seen += _NOISE * np.sqrt(_DIRECTIONS) * random.standard_normal(seen.shape, np.float32)
        seen *= np.float32(np.sqrt(_SQUARED_LENGTH / (self._inputs * _DIRECTIONS)))
        scores = np.maximum(causes @ self._first, 0) @ self._second
        return seen, (scores - scores.mean(axis=0)).argmax(axis=1).astype(np.int32)

    def training(self, batch: int) -> Iterator[Examples]:
        """Batches without end, the same for all who ask; they are views of one pool, so that feeding costs nothing."""
        rows = max(2 * batch, min(_MOST_ROWS, _POOL_BYTES // (4 * self._inputs)))
        inputs, labels = self.examples(rows, seed=1)
        random = np.random.default_rng((SEED, 2))
        while True:
            start = int(random.integers(rows - batch + 1))
            yield inputs[start : start + batch], labels[start : start + batch]

    def test(self) -> Examples:
        """Examples that are never trained on."""
        return self.examples(_TEST_ROWS, seed=3)


def first_parameters(layers: tuple[int, ...]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """What every contender begins with: a matrix and a vector for each layer."""
    random = np.random.default_rng((SEED, 4))
    return [
        (
            random.normal(0, np.sqrt(1 / wide), (wide, narrow)).astype(np.float32),
            np.zeros(narrow, np.float32),
        )
        for wide, narrow in itertools.pairwise(layers)
    ]
