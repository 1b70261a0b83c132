"""Who runs against whom, and the ratios to reach."""

import os
from dataclasses import dataclass, field

from benchmarks.strategies.work import LARGE, SMALL

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
        processes: How many processes it is.
        threads: The numbers of threads that it tries out.
    """

    name: str
    module: str
    function: str
    processes: int = 1
    threads: tuple[int | None, ...] = FREE


@dataclass(frozen=True)
class Comparison:
    """A ratio of examples per second.

    Attributes:
        name: The contender above the line.
        against: The contender below it.
        targets: The least ratio that is good enough, by model; none for what is only good to know.
        aims: The ratio to hope for, by model.
    """

    name: str
    against: str
    targets: dict[str, float]
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


RACES = (
    Race(
        name="one device",
        replicas=1,
        devices=1,
        contenders=(
            Contender("bare JAX", "jax_by_hand", "one_device"),
            Contender("bare JAX, NumPy into jit", "jax_by_hand", "one_device_unplaced"),
            Contender("OneDeviceStrategy", "stratagem_strategies", "one_device"),
        ),
        comparisons=(
            Comparison("OneDeviceStrategy", "bare JAX", {SMALL: 0.97}),
            Comparison("OneDeviceStrategy", "bare JAX, NumPy into jit", {SMALL: 0.97}),
        ),
    ),
    Race(
        name="two devices in one process",
        replicas=2,
        devices=2,
        contenders=(
            Contender("bare JAX", "jax_by_hand", "mesh"),
            Contender("MirroredStrategy", "stratagem_strategies", "mirrored"),
            Contender("CentralStorageStrategy", "stratagem_strategies", "central_storage"),
            Contender("TensorFlow Mirrored", "tensorflow_strategies", "mirrored", threads=TRIED),
            Contender(
                "TensorFlow Mirrored, by copies", "tensorflow_strategies", "mirrored_by_copies", threads=TRIED
            ),
            Contender("TensorFlow CentralStorage", "tensorflow_strategies", "central_storage", threads=TRIED),
        ),
        comparisons=(
            Comparison("MirroredStrategy", "bare JAX", {SMALL: 0.95}),
            Comparison("MirroredStrategy", "TensorFlow Mirrored", {SMALL: 1.7}),
            Comparison("MirroredStrategy", "TensorFlow Mirrored, by copies", {}),
            Comparison("CentralStorageStrategy", "TensorFlow CentralStorage", {SMALL: 1.0}),
        ),
    ),
    Race(
        name="two processes on one host",
        replicas=2,
        devices=1,
        contenders=(
            Contender("bare JAX over gloo", "jax_by_hand", "two_processes", 2, TRIED),
            Contender("MultiWorkerMirroredStrategy", "stratagem_strategies", "multi_worker", 2, TRIED),
            Contender("PyTorch DDP", "torch_ddp", "data_parallel", 2, TRIED),
            Contender("TensorFlow MultiWorkerMirrored", "tensorflow_strategies", "multi_worker", 2, TRIED),
        ),
        comparisons=(
            Comparison(
                "MultiWorkerMirroredStrategy", "PyTorch DDP", {SMALL: 1.7, LARGE: 1.0}, aims={SMALL: 2.2}
            ),
            Comparison("MultiWorkerMirroredStrategy", "TensorFlow MultiWorkerMirrored", {SMALL: 4.0}),
            Comparison("MultiWorkerMirroredStrategy", "bare JAX over gloo", {}),
        ),
    ),
)
