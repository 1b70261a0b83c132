"""Sums of arrays, and arrays in the bytes that go from worker to worker."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.collectives.layout import Layout
from stratagem.collectives.packing import arrays_in, new_room, pieces_in, received, write
from stratagem.collectives.specs import ArraySpec, sum_dtype
from stratagem.collectives.sums import sum_in_order
from stratagem.errors import ProtocolError
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


def test_arrays_come_out_of_a_chunk_as_they_went_in_even_where_it_cuts_them() -> None:
    specs = [ArraySpec((5, 7), FLOAT32), ArraySpec((0, 3), FLOAT32), ArraySpec((), np.dtype(np.int64))]
    arrays: list[Array] = [
        np.arange(35, dtype=np.float32).reshape(5, 7),
        np.zeros((0, 3), np.float32),
        np.asarray(9),
    ]
    flats = [array.reshape(-1) for array in arrays]
    layout = Layout.plan(specs, 3, share=64)
    rebuilt = [np.zeros(spec.size, spec.dtype) for spec in specs]
    for chunks in layout.rounds:
        for chunk in chunks:
            room = write(new_room(chunk), chunk, flats, specs)
            for piece, part in zip(chunk.pieces, pieces_in(room, chunk, specs), strict=True):
                rebuilt[piece.array][piece.start : piece.stop] = part
    assert all(np.array_equal(one, other) for one, other in zip(rebuilt, flats, strict=True))
    whole = arrays_in(write(new_room(layout.whole), layout.whole, flats, specs), layout.whole, specs)
    for found, array in zip(whole, arrays, strict=True):
        assert (found.shape, found.dtype) == (array.shape, array.dtype)
        assert np.array_equal(found, array)
        assert found.size == 0 or found.__array_interface__["data"][0] % 64 == 0


@pytest.mark.parametrize(
    "tensors",
    [
        [],
        [np.zeros(63, np.uint8)],
        [np.zeros(16, np.float32)],
        [np.zeros(64, np.uint8), np.zeros(64, np.uint8)],
    ],
)
def test_a_part_of_another_size_is_refused(tensors: list[Array]) -> None:
    chunk = Layout.plan([ArraySpec((16,), FLOAT32)], 2).whole
    assert received([np.zeros(64, np.uint8)], chunk).nbytes == 64
    with pytest.raises(ProtocolError, match="64 bytes was announced"):
        received(tensors, chunk)
