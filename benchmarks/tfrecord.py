"""Reading and parsing TFRecord files of 28×28 images against tf.data with as many threads, in one run, alternating.

    python -m benchmarks.tfrecord [--records 40000] [--rounds 7] [--json]

Both read two files, compare checksums, and give batches of images and labels: pixels as raw bytes to uint8, or as a
float_list to float32. With two threads each has a file. What counts is the median of the ratios of neighbouring
turns. Needs tensorflow.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.racing.figures import summary
from stratagem.data import (
    FixedLenFeature,
    RawFeature,
    make_example,
    parse_example,
    read_tfrecord,
    write_tfrecord,
)
from stratagem.data.features import Feature

FILES, TARGET = 2, 1.0
KINDS = ("bytes", "floats")
BATCHES = (128, 1024)
THREADS = (1, 2)


def write_files(directory: Path, kind: str, records: int) -> list[Path]:
    random = np.random.default_rng(0)
    paths = [directory / f"{kind}-{number}.tfrecord" for number in range(FILES)]
    for path in paths:
        pixels = random.integers(0, 256, (records // FILES, 784), dtype=np.uint8)
        write_tfrecord(
            path,
            (
                make_example(
                    {"image": row.tobytes() if kind == "bytes" else row / np.float32(255), "label": at % 10}
                )
                for at, row in enumerate(pixels)
            ),
        )
    return paths


def ours(paths: list[Path], kind: str, batch: int, threads: int) -> Callable[[], int]:
    image: Feature = RawFeature((28, 28)) if kind == "bytes" else FixedLenFeature((28, 28), np.float32)
    features: dict[str, Feature] = {"image": image, "label": FixedLenFeature((), np.int64)}

    def count(files: list[Path]) -> int:
        return sum(
            len(parse_example(records, features)["label"]) for records in read_tfrecord(files).batches(batch)
        )

    if threads == 1:
        return lambda: count(paths)
    pool = ThreadPoolExecutor(threads)
    return lambda: sum(pool.map(count, [[path] for path in paths]))


def theirs(paths: list[Path], kind: str, batch: int, threads: int) -> Callable[[], int]:
    import tensorflow as tf

    stored = tf.io.FixedLenFeature([], tf.string)
    floats = tf.io.FixedLenFeature([28, 28], tf.float32)
    features = {
        "image": stored if kind == "bytes" else floats,
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(serialized: Any) -> Any:
        parsed = tf.io.parse_example(serialized, features)
        if kind == "bytes":
            parsed["image"] = tf.reshape(tf.io.decode_raw(parsed["image"], tf.uint8), [-1, 28, 28])
        return parsed

    def of_files(files: Any) -> Any:
        return tf.data.TFRecordDataset(files, buffer_size=4 << 20).batch(batch)

    names = [str(path) for path in paths]
    if threads == 1:
        dataset = of_files(names).map(parse)
    else:
        dataset = tf.data.Dataset.from_tensor_slices(names).interleave(
            lambda name: of_files(name).map(parse),
            cycle_length=threads,
            num_parallel_calls=threads,
            deterministic=False,
        )
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    dataset = dataset.with_options(options)
    return lambda: sum(int(batch["label"].shape[0]) for batch in dataset)


def race(paths: list[Path], kind: str, batch: int, threads: int, records: int, rounds: int) -> dict[str, Any]:
    contenders = {
        "stratagem": ours(paths, kind, batch, threads),
        "tf.data": theirs(paths, kind, batch, threads),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):  # the first is for warming up
        for name, run in contenders.items():
            start = time.perf_counter()
            if run() != records:
                raise SystemExit(f"{name} did not give all {records} records")
            if number:
                times[name].append(time.perf_counter() - start)
    rates = {name: records / statistics.median(values) for name, values in times.items()}
    ratios = [other / own for own, other in zip(times["stratagem"], times["tf.data"], strict=True)]
    return {
        "pixels": kind,
        "batch": batch,
        "threads": threads,
        **rates,
        "ratio": summary(ratios),
        "target": TARGET,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    records = options.records // FILES * FILES
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for kind in KINDS:
            paths = write_files(Path(directory), kind, records)
            for batch in BATCHES:
                for threads in THREADS:
                    row = race(paths, kind, batch, threads, records, options.rounds)
                    rows.append(row)
                    if not options.json:
                        print(
                            f"{kind:6} batch {batch:5} threads {threads}: stratagem {row['stratagem']:9,.0f}/s  "
                            f"tf.data {row['tf.data']:9,.0f}/s  × {row['ratio']['median']:.2f} (≥ {TARGET:g})",
                            flush=True,
                        )
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
