"""The definition of a race: its contenders, and the ratios to reach."""

import os
from dataclasses import dataclass, field

CORES = len(os.sched_getaffinity(0))
FREE: tuple[int | None, ...] = (None,)
"""As many threads as the framework takes by itself."""
TRIED: tuple[int | None, ...] = (None, *sorted({1, max(1, CORES // 2)}))
"""What those try out in a warm-up who run at their best thread setting."""


@dataclass(frozen=True)
class Contender:
    """A way to train.

    Attributes:
        name: Its name in tables.
        module: Its module among the contenders.
        function: The function of the module that starts it.
        processes: Number of its processes that train.
        threads: The numbers of threads to try.
    """

    name: str
    module: str
    function: str
    processes: int = 1
    threads: tuple[int | None, ...] = FREE


@dataclass(frozen=True)
class Comparison:
    """A ratio of rates.

    Attributes:
        name: The numerator's contender.
        against: The denominator's contender.
        targets: The least acceptable ratio, by model; none for a ratio without a target.
        aims: The ratio to hope for, by model.
    """

    name: str
    against: str
    targets: dict[str, float] = field(default_factory=dict)
    aims: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Race:
    """Contenders that train the same model on the same batches, in turns.

    Attributes:
        name: What the contenders have in common.
        replicas: Number of replicas that share a global batch.
        devices: Number of virtual devices of JAX in each process.
        contenders: The contenders; the others are shown relative to the first.
        comparisons: The ratios that matter.
    """

    name: str
    replicas: int
    devices: int
    contenders: tuple[Contender, ...]
    comparisons: tuple[Comparison, ...]
