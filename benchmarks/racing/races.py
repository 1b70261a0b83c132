"""What a race is: who runs against whom, and the ratios to reach."""

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
        name: As the tables say it.
        module: Its module among the contenders.
        function: What starts it there.
        processes: How many processes of it train.
        threads: The numbers of threads that it tries out.
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
        name: The contender above the line.
        against: The contender below it.
        targets: The least ratio that is good enough, by model; none for what is only good to know.
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
        name: What they have in common.
        replicas: How many replicas share a global batch.
        devices: How many virtual devices JAX gets in each process.
        contenders: The first is what the others are shown against.
        comparisons: The ratios that matter.
    """

    name: str
    replicas: int
    devices: int
    contenders: tuple[Contender, ...]
    comparisons: tuple[Comparison, ...]
