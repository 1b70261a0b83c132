"""The races: their contenders, and the ratios to reach."""

from benchmarks.racing.races import TRIED, Comparison, Contender, Race
from benchmarks.racing.work import LARGE, SMALL

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
        name="Keras on one device",
        replicas=1,
        devices=1,
        contenders=(
            Contender("Keras fit", "keras_fit", "plain"),
            Contender("Keras fit under OneDeviceStrategy", "keras_fit", "one_device"),
        ),
        comparisons=(Comparison("Keras fit under OneDeviceStrategy", "Keras fit", {SMALL: 0.97}),),
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
            Comparison("MirroredStrategy", "TensorFlow Mirrored, by copies"),
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
            Contender(
                "MultiWorkerMirroredStrategy, ring", "stratagem_strategies", "multi_worker_over_xla", 2, TRIED
            ),
            Contender("PyTorch DDP", "torch_ddp", "data_parallel", 2, TRIED),
            Contender("TensorFlow MultiWorkerMirrored", "tensorflow_strategies", "multi_worker", 2, TRIED),
        ),
        comparisons=(
            Comparison(
                "MultiWorkerMirroredStrategy",
                "PyTorch DDP",
                {SMALL: 1.7, LARGE: 1.0},
                aims={SMALL: 2.2, LARGE: 1.5},
            ),
            Comparison("MultiWorkerMirroredStrategy", "TensorFlow MultiWorkerMirrored", {SMALL: 4.0}),
            Comparison("MultiWorkerMirroredStrategy", "bare JAX over gloo"),
            Comparison("MultiWorkerMirroredStrategy, ring", "bare JAX over gloo", {SMALL: 0.95, LARGE: 0.95}),
        ),
    ),
    Race(
        name="two processes with two devices each",
        replicas=4,
        devices=2,
        contenders=(
            Contender("bare JAX over gloo", "jax_by_hand", "two_processes", 2),
            Contender("MultiWorkerMirroredStrategy", "stratagem_strategies", "multi_worker", 2),
            Contender(
                "MultiWorkerMirroredStrategy, ring", "stratagem_strategies", "multi_worker_over_xla", 2
            ),
        ),
        comparisons=(
            Comparison("MultiWorkerMirroredStrategy", "bare JAX over gloo"),
            Comparison("MultiWorkerMirroredStrategy, ring", "bare JAX over gloo", {SMALL: 0.95, LARGE: 0.95}),
        ),
    ),
)
