"""The work of every contender: embeddings, their means over the ids of an example, and a vector; all from one seed."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

DIM = 16
EXAMPLES = 256
BATCHES = 100
"""How many batches each worker goes through over and over, where ids are not fresh."""
POOL = 200_000
"""How many ids there are at most to draw from."""
LEARNING_RATE = 0.1
FIRST_ACCUMULATOR = 0.1
SPREAD = 1.05
"""How much more often than the next one an id of Zipf's is drawn: the exponent."""
STRIDE = 2_654_435_761
"""A prime: its multiples, modulo the number of rows, are all rows, each once."""
SEED = 0

Draw = Literal["seen before", "fresh", "Zipf"]
Targets = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TableWork:
    """Some tables, and the ids that are looked up in them.

    Attributes:
        sizes: The number of rows of each table.
        per_example: Number of ids of each table in an example.
        draw: How ids are drawn: from a pool that repeats, always new, or a few of them often.
    """

    sizes: tuple[int, ...]
    per_example: int
    draw: Draw

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> "TableWork":
        """Make the work from its fields, as `asdict` and JSON left them."""
        return cls(tuple(fields["sizes"]), fields["per_example"], fields["draw"])

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the ids of one table in a batch."""
        return EXAMPLES, self.per_example

    @property
    def nbytes(self) -> int:
        """The size of all rows, each with one slot."""
        return sum(self.sizes) * DIM * 4 * 2

    def names(self) -> list[str]:
        """The names of the tables."""
        return [f"table{number}" for number in range(len(self.sizes))]

    def vector(self) -> NDArray[np.float32]:
        """Return the dense parameter before training."""
        return np.full(DIM * len(self.sizes), 0.1, np.float32)

    def targets(self, worker: int) -> Targets:
        """Return the targets of the examples of each batch of a worker."""
        return np.random.default_rng((SEED, worker)).random((BATCHES, EXAMPLES), np.float32)

    def ids(self, worker: int) -> list[Ids]:
        """Return the ids of each batch of a worker, for each table; new ids have no end."""
        random = np.random.default_rng((SEED + 1, worker))
        return [self._drawn(random, number, size) for number, size in enumerate(self.sizes)]

    def _drawn(self, random: np.random.Generator, number: int, size: int) -> Ids:
        shape = BATCHES, *self.shape
        if self.draw == "Zipf":
            weights = np.cumsum(1 / np.arange(1, size + 1) ** SPREAD)
            ranks = np.searchsorted(weights, random.random(shape) * weights[-1])
            drawn: Ids = ranks.astype(np.int64) * STRIDE % size
            return drawn
        pool = np.random.default_rng((SEED + 2, number)).choice(size, min(POOL, size), False, shuffle=False)
        return pool.astype(np.int64)[random.integers(0, len(pool), shape)]

    def batches(self, worker: int, workers: int) -> Iterator[dict[str, Any]]:
        """Return the batches of one worker: targets, and the ids of each table by its name."""
        names, targets = self.names(), self.targets(worker)
        if self.draw == "fresh":
            count = EXAMPLES * self.per_example
            for number in itertools.count():
                own = np.arange(number * count, (number + 1) * count).reshape(self.shape)
                ids = [(own * workers + worker) * STRIDE % size for size in self.sizes]
                yield {"target": targets[number % BATCHES], **dict(zip(names, ids, strict=True))}
        else:
            every = self.ids(worker)
            for number in itertools.cycle(range(BATCHES)):
                ids = [own[number] for own in every]
                yield {"target": targets[number], **dict(zip(names, ids, strict=True))}
