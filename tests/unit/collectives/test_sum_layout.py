"""Where arrays lie, and who sums what: every element exactly once, nothing cut, the same on every worker."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.collectives.sum_layout import (
    BLOCK,
    ArraySpec,
    Chunk,
    SumLayout,
    chunk_bytes,
    new_buffer,
    packs_of,
    split,
    strides,
)
from stratagem.errors import ProtocolError, StrategyError
from stratagem.runtime.wire.arrays import Array

FLOAT32 = np.dtype(np.float32)

DTYPES = [np.dtype(name) for name in ("float32", "float64", "float16", "int8", "complex128")]
SPECS = st.lists(
    st.builds(
        ArraySpec,
        st.lists(st.integers(0, 40), max_size=3).map(tuple),
        st.sampled_from(DTYPES),
    ),
    max_size=12,
)


@given(st.integers(0, 50), st.integers(0, 5000), st.integers(1, 9))
def test_a_split_covers_everything_in_shares_that_differ_by_a_block(
    first: int, size: int, parts: int
) -> None:
    start = first * BLOCK
    shares = split(start, start + size, parts)
    assert len(shares) == parts
    assert [share[0] for share in shares] == [start, *[share[1] for share in shares[:-1]]]
    assert shares[-1][1] == start + size
    blocks = [-(-(stop - low) // BLOCK) for low, stop in shares]
    assert max(blocks) - min(blocks) <= 1
    assert all(low % BLOCK == 0 for low, stop in shares if low < stop)


@given(st.integers(0, 100_000), st.integers(1, 9000))
def test_strides_are_as_few_as_can_be(size: int, most: int) -> None:
    result = strides(0, size, most)
    assert result[0][0] == 0
    assert result[-1][1] == size
    assert max(stop - start for start, stop in result) <= max(most, BLOCK)
    assert len(result) <= max(1, -(-size // max(BLOCK, most // BLOCK * BLOCK)))


def test_packs_follow_tensorflows_rule() -> None:
    assert packs_of([4, 4, 4, 4], 0) == [[0, 1, 2, 3]]
    assert packs_of([4, 4, 4, 4], 4) == [[0, 1], [2, 3]]
    assert packs_of([4, 4, 4, 4], 3) == [[0], [1], [2], [3]]
    assert packs_of([100, 1, 1], 10) == [[0], [1, 2]]
    assert packs_of([], 10) == [[]]


@given(SPECS, st.integers(1, 5), st.sampled_from([0, 1, 300, 5000]), st.integers(1, 2000))
def test_every_element_is_summed_by_one_worker(
    specs: list[ArraySpec], workers: int, bytes_per_pack: int, share: int
) -> None:
    layout = SumLayout.plan(specs, workers, bytes_per_pack, share)
    taken = [np.zeros(math.prod(spec.shape), int) for spec in specs]
    for chunks in layout.rounds:
        assert len(chunks) == workers
        for chunk in chunks:
            assert chunk.nbytes < share + BLOCK
            _count(chunk, specs, taken)
    assert all((each == 1).all() for each in taken)
    _count(layout.whole, specs, taken)
    assert all((each == 2).all() for each in taken)
    assert all(piece.offset % BLOCK == 0 for piece in layout.whole.slices)


def _count(chunk: Chunk, specs: list[ArraySpec], taken: list[Any]) -> None:
    """Count the elements of a chunk, whose slices lie one after the other within it."""
    end = 0
    for piece in chunk.slices:
        assert end <= piece.offset
        assert piece.nbytes == (piece.stop - piece.start) * specs[piece.array].dtype.itemsize > 0
        end = piece.offset + piece.nbytes
        taken[piece.array][piece.start : piece.stop] += 1
    assert end <= chunk.nbytes


def test_order_of_packs_is_kept_in_the_rounds() -> None:
    specs = [ArraySpec((10,), np.dtype(np.float32)) for _ in range(3)]
    layout = SumLayout.plan(specs, 2, bytes_per_pack=1)
    assert [chunks[0].slices[0].array for chunks in layout.rounds] == [0, 1, 2]


@pytest.mark.parametrize(
    ("elements", "workers", "bytes_per_pack", "is_all_to_all"),
    [(1 << 20, 2, 0, True), (1 << 20, 3, 0, False), (100, 3, 0, True), (1 << 20, 2, 1, False)],
)
def test_two_workers_swap_everything_and_more_share_out_what_is_large(
    elements: int, workers: int, bytes_per_pack: int, is_all_to_all: bool
) -> None:
    specs = [ArraySpec((elements,), np.dtype(np.float32))] * 2
    assert SumLayout.plan(specs, workers, bytes_per_pack).is_all_to_all == is_all_to_all


@pytest.mark.parametrize("dtype", ["bool", "U3", "O", "datetime64[s]"])
def test_what_is_no_number_is_refused(dtype: Any) -> None:
    with pytest.raises(StrategyError, match="cannot be summed"):
        SumLayout.plan([ArraySpec((1,), np.dtype(dtype))], 2)


def test_arrays_come_out_of_a_chunk_as_they_went_in_even_where_it_cuts_them() -> None:
    specs = [ArraySpec((5, 7), FLOAT32), ArraySpec((0, 3), FLOAT32), ArraySpec((), np.dtype(np.int64))]
    arrays: list[Array] = [
        np.arange(35, dtype=np.float32).reshape(5, 7),
        np.zeros((0, 3), np.float32),
        np.asarray(9),
    ]
    flats = [array.reshape(-1) for array in arrays]
    layout = SumLayout.plan(specs, 3, share=64)
    rebuilt = [np.zeros(math.prod(spec.shape), spec.dtype) for spec in specs]
    for chunks in layout.rounds:
        for chunk in chunks:
            buffer = layout.fill(new_buffer(chunk), chunk, flats)
            for piece, part in zip(chunk.slices, layout.slices_in(buffer, chunk), strict=True):
                rebuilt[piece.array][piece.start : piece.stop] = part
    assert all(np.array_equal(one, other) for one, other in zip(rebuilt, flats, strict=True))
    whole = layout.arrays_in(layout.fill(new_buffer(layout.whole), layout.whole, flats))
    for result, array in zip(whole, arrays, strict=True):
        assert (result.shape, result.dtype) == (array.shape, array.dtype)
        assert np.array_equal(result, array)
        assert result.size == 0 or result.__array_interface__["data"][0] % 64 == 0


@pytest.mark.parametrize(
    "tensors",
    [
        [],
        [np.zeros(63, np.uint8)],
        [np.zeros(16, np.float32)],
        [np.zeros(64, np.uint8), np.zeros(64, np.uint8)],
    ],
)
def test_a_chunk_of_another_size_is_refused(tensors: list[Array]) -> None:
    chunk = SumLayout.plan([ArraySpec((16,), FLOAT32)], 2).whole
    assert chunk_bytes([np.zeros(64, np.uint8)], chunk).nbytes == 64
    with pytest.raises(ProtocolError, match="64 bytes was announced"):
        chunk_bytes(tensors, chunk)
