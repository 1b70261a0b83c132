"""The work of every contender: a dense classifier, its initial parameters and its batches, all from one seed.

The batches have the shape and the types of Fashion-MNIST; the content of the pictures makes no difference to speed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEARNING_RATE = 0.1
ROWS_PER_REPLICA = 100
BATCHES = 50
SEED = 0

Pictures = NDArray[np.float32]
Labels = NDArray[np.int32]
Layer = tuple[NDArray[np.float32], NDArray[np.float32]]

SMALL, LARGE = "784-500-10", "784-4096-4096-10"
MODELS = {SMALL: (784, 500, 10), LARGE: (784, 4096, 4096, 10)}


@dataclass(frozen=True)
class Work:
    """One model, and the number of replicas that share each of its global batches.

    Attributes:
        sizes: The width of each layer, from the pictures to the classes.
        replicas: Number of replicas.
    """

    sizes: tuple[int, ...]
    replicas: int

    @property
    def rows(self) -> int:
        """Examples in a global batch, which one step trains on."""
        return ROWS_PER_REPLICA * self.replicas

    def layers(self) -> list[Layer]:
        """Return the initial parameters: a matrix and a vector for each layer."""
        random = np.random.default_rng(SEED)
        return [
            (
                random.normal(0, np.sqrt(1 / wide), (wide, narrow)).astype(np.float32),
                np.zeros(narrow, np.float32),
            )
            for wide, narrow in zip(self.sizes, self.sizes[1:], strict=False)
        ]

    def batches(self) -> list[tuple[Pictures, Labels]]:
        """Return the global batches, through which every contender cycles."""
        random = np.random.default_rng(SEED + 1)
        return [
            (
                random.random((self.rows, self.sizes[0]), np.float32),
                random.integers(0, self.sizes[-1], self.rows, np.int32),
            )
            for _ in range(BATCHES)
        ]

    def share(self, index: int, workers: int) -> list[tuple[Pictures, Labels]]:
        """Return one worker's rows of each global batch."""
        each = self.rows // workers
        rows = slice(index * each, (index + 1) * each)
        return [(pictures[rows], labels[rows]) for pictures, labels in self.batches()]
