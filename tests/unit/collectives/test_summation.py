"""Sums of arrays."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.collectives.summation import sum_dtype, sum_in_order
from stratagem.runtime.wire.arrays import Array


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
