"""Where arrays lie, and who sums what: every element exactly once, nothing cut, the same on every worker."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.collectives.chunks import BLOCK, cut, strides
from stratagem.collectives.layout import Chunk, Layout, packs
from stratagem.collectives.specs import ArraySpec
from stratagem.errors import StrategyError

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
def test_a_cut_covers_everything_in_shares_that_differ_by_a_block(first: int, size: int, parts: int) -> None:
    start = first * BLOCK
    shares = cut(start, start + size, parts)
    assert len(shares) == parts
    assert [share[0] for share in shares] == [start, *[share[1] for share in shares[:-1]]]
    assert shares[-1][1] == start + size
    blocks = [-(-(stop - low) // BLOCK) for low, stop in shares]
    assert max(blocks) - min(blocks) <= 1
    assert all(low % BLOCK == 0 for low, stop in shares if low < stop)


@given(st.integers(0, 100_000), st.integers(1, 9000))
def test_strides_are_as_few_as_can_be(size: int, most: int) -> None:
    found = strides(0, size, most)
    assert found[0][0] == 0
    assert found[-1][1] == size
    assert max(stop - start for start, stop in found) <= max(most, BLOCK)
    assert len(found) <= max(1, -(-size // max(BLOCK, most // BLOCK * BLOCK)))


def test_packs_follow_tensorflows_rule() -> None:
    assert packs([4, 4, 4, 4], 0) == [[0, 1, 2, 3]]
    assert packs([4, 4, 4, 4], 4) == [[0, 1], [2, 3]]
    assert packs([4, 4, 4, 4], 3) == [[0], [1], [2], [3]]
    assert packs([100, 1, 1], 10) == [[0], [1, 2]]
    assert packs([], 10) == [[]]


@given(SPECS, st.integers(1, 5), st.sampled_from([0, 1, 300, 5000]), st.integers(1, 2000))
def test_every_element_is_summed_by_one_worker(
    specs: list[ArraySpec], workers: int, bytes_per_pack: int, share: int
) -> None:
    layout = Layout.plan(specs, workers, bytes_per_pack, share)
    taken = [np.zeros(spec.size, int) for spec in specs]
    for chunks in layout.rounds:
        assert len(chunks) == workers
        for chunk in chunks:
            assert chunk.nbytes < share + BLOCK
            _count(chunk, specs, taken)
    assert all((each == 1).all() for each in taken)
    _count(layout.whole, specs, taken)
    assert all((each == 2).all() for each in taken)
    assert all(piece.offset % BLOCK == 0 for piece in layout.whole.pieces)


def _count(chunk: Chunk, specs: list[ArraySpec], taken: list[Any]) -> None:
    """Count the elements of a chunk, whose pieces lie one after the other within it."""
    end = 0
    for piece in chunk.pieces:
        assert end <= piece.offset
        assert piece.nbytes == (piece.stop - piece.start) * specs[piece.array].dtype.itemsize > 0
        end = piece.offset + piece.nbytes
        taken[piece.array][piece.start : piece.stop] += 1
    assert end <= chunk.nbytes


def test_order_of_packs_is_kept_in_the_rounds() -> None:
    specs = [ArraySpec((10,), np.dtype(np.float32)) for _ in range(3)]
    layout = Layout.plan(specs, 2, bytes_per_pack=1)
    assert [chunks[0].pieces[0].array for chunks in layout.rounds] == [0, 1, 2]


@pytest.mark.parametrize(
    ("elements", "workers", "bytes_per_pack", "goes_whole"),
    [(1 << 20, 2, 0, True), (1 << 20, 3, 0, False), (100, 3, 0, True), (1 << 20, 2, 1, False)],
)
def test_two_workers_swap_everything_and_more_share_out_what_is_large(
    elements: int, workers: int, bytes_per_pack: int, goes_whole: bool
) -> None:
    specs = [ArraySpec((elements,), np.dtype(np.float32))] * 2
    assert Layout.plan(specs, workers, bytes_per_pack).goes_whole == goes_whole


@pytest.mark.parametrize("dtype", ["bool", "U3", "O", "datetime64[s]"])
def test_what_is_no_number_is_refused(dtype: Any) -> None:
    with pytest.raises(StrategyError, match="cannot be summed"):
        Layout.plan([ArraySpec((1,), np.dtype(dtype))], 2)
