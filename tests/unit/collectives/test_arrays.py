"""Sums of arrays and the memory that they lie in."""

import gc

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.collectives.layout import Layout
from stratagem.collectives.results import Memory
from stratagem.collectives.specs import ArraySpec, sum_dtype
from stratagem.collectives.sums import sum_in_order
from stratagem.runtime.wire.arrays import Array

FLOAT32 = np.dtype(np.float32)


@given(st.integers(0, 200_000), st.integers(1, 5), st.integers(0, 100))
def test_sums_are_taken_in_order(size: int, workers: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    parts = [generator.standard_normal(size, np.float32) for _ in range(workers)]
    wanted = parts[0].copy()
    for part in parts[1:]:
        wanted = wanted + part
    out = np.empty(size, np.float32)
    sum_in_order(parts, out)
    assert out.tobytes() == wanted.tobytes()


def test_the_sum_of_nothing_is_zero() -> None:
    out = np.ones(3, np.float32)
    sum_in_order([], out)
    assert not out.any()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_narrow_numbers_are_rounded_once(dtype: type) -> None:
    values = [1.0, *[2.0**-12] * 3, -1.0]
    out: Array = np.empty(1, dtype)
    sum_in_order([np.full(1, value).astype(dtype) for value in values], out)
    # Rounded at each step, the little ones would have been lost.
    assert float(out[0]) == 3 * 2.0**-12


def test_integers_are_exact_and_overflow_is_silent() -> None:
    out = np.empty(1, np.int64)
    sum_in_order([np.asarray([2**62]), np.asarray([1]), np.asarray([2])], out)
    assert out[0] == 2**62 + 3
    wide = np.empty(1, np.float32)
    sum_in_order([np.asarray([3e38], np.float32)] * 2, wide)
    assert np.isinf(wide[0])
    assert sum_dtype(np.dtype(ml_dtypes.int4)) == np.int32


def test_memory_is_used_again_when_nobody_holds_it() -> None:
    memory = Memory(Layout.plan([ArraySpec((4, 5), FLOAT32), ArraySpec((), FLOAT32)], 2))
    first = memory.take()
    held = first.arrays()
    assert [array.shape for array in held] == [(4, 5), ()]
    assert all(array.__array_interface__["data"][0] % 64 == 0 for array in held)
    assert not any(array.flags.writeable for array in held)
    assert memory.take() is not first
    part = held[0][1:2]
    del held
    assert memory.take() is not first
    del part
    assert memory.take() is first


def test_jax_may_read_a_sum_in_place_for_as_long_as_it_likes() -> None:
    memory = Memory(Layout.plan([ArraySpec((64, 64), FLOAT32)], 2))
    sums = memory.take()
    (array,) = sums.arrays()
    sums.pieces[0][0][0].fill(3.0)
    read = jax.device_put(array)
    assert read.unsafe_buffer_pointer() == array.__array_interface__["data"][0]
    del array
    assert memory.take() is not sums
    assert float(read[0, 0]) == 3.0
    del read
    gc.collect()
    assert memory.take() is sums
