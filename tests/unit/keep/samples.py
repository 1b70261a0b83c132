"""States of a pretended run, for tests."""

from pathlib import Path
from typing import Any

import numpy as np

from stratagem.keep import Manifest, Snapshots, TensorEntry, write_shard
from stratagem.runtime.wire import dtype_of

NARROW = {
    "float4_e2m1fn",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "int1",
    "int2",
    "int4",
    "uint1",
    "uint2",
    "uint4",
}
Array = np.ndarray[Any, np.dtype[Any]]


def noise(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Elements of every kind: for a dtype of floating point, also infinities and NaNs."""
    random = np.random.default_rng(seed)
    element = dtype_of(dtype)
    if dtype == "bool" or dtype in NARROW:  # not every byte is one of these
        return random.integers(0, 2, shape).astype(element)
    count = int(np.prod(shape)) * element.itemsize
    return np.frombuffer(random.bytes(count), element).reshape(shape)


def same(one: Array, other: Array) -> bool:
    """Whether two arrays are the same to the last bit."""
    return (one.shape, one.dtype, one.tobytes()) == (other.shape, other.dtype, other.tobytes())


def state(step: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """What two servers hold at a step: `table` is split by rows, the others are whole."""
    table = np.arange(40, dtype=np.float32).reshape(10, 4) + step
    first: dict[str, Array] = {"table/part_0": table[:6], "count": np.array(step)}
    second: dict[str, Array] = {"table/part_1": table[6:], "bias": np.full(3, step, np.int16)}
    return first, second


def write_snapshot(snapshots: Snapshots, step: int) -> Path:
    """A snapshot of that state; its directory."""
    directory = snapshots.directory(step)
    records = [
        write_shard(directory, f"ps-{index}", tensors, durable=False)
        for index, tensors in enumerate(state(step))
    ]
    tensors = {
        "table": TensorEntry.join([(records[0], "table/part_0"), (records[1], "table/part_1")]),
        "count": TensorEntry.join([(records[0], "count")]),
        "bias": TensorEntry.join([(records[1], "bias")]),
    }
    snapshots.commit(Manifest(step, records, tensors, {"applied": {"worker/0": [step, 7]}}))
    return directory
