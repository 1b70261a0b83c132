"""The shard rules give the numbers of tf.distribute.experimental.partitioners, wherever these give any.

TensorFlow fails for scalars and for variables without elements; we leave such variables whole.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.devices import FixedShards, MaxSizeShards, MinSizeShards, byte_size

tf = pytest.importorskip("tensorflow")

SHAPES = st.lists(st.integers(min_value=1, max_value=60), min_size=1, max_size=3)
COUNTS = st.integers(min_value=1, max_value=70)
BYTES = st.integers(min_value=1, max_value=20_000)
DTYPES = st.sampled_from(["float32", "float64", "bfloat16", "int8", "bool", "complex64", "int64"])


def theirs(partitioner: Any, shape: list[int], dtype: str) -> int:
    first, *others = partitioner(tf.TensorShape(shape), tf.as_dtype(dtype))
    assert all(number == 1 for number in others)
    return int(first)


@given(COUNTS, SHAPES, DTYPES)
def test_fixed(count: int, shape: list[int], dtype: str) -> None:
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(count)
    assert FixedShards(count).num_shards(shape, dtype) == theirs(partitioner, shape, dtype)


@given(BYTES, COUNTS, SHAPES, DTYPES)
def test_min_size(size: int, count: int, shape: list[int], dtype: str) -> None:
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(size, count)
    assert MinSizeShards(size, count).num_shards(shape, dtype) == theirs(partitioner, shape, dtype)


@given(BYTES, st.none() | COUNTS, SHAPES, DTYPES)
def test_max_size(size: int, count: int | None, shape: list[int], dtype: str) -> None:
    partitioner = tf.distribute.experimental.partitioners.MaxSizePartitioner(size, count)
    assert MaxSizeShards(size, count).num_shards(shape, dtype) == theirs(partitioner, shape, dtype)


@given(SHAPES, DTYPES)
def test_tensorflow_s_own_variables_have_a_size(shape: list[int], dtype: str) -> None:
    spec = tf.TensorSpec(shape, tf.as_dtype(dtype))
    assert byte_size(spec) == tf.TensorShape(shape).num_elements() * tf.as_dtype(dtype).size
