"""Where arrays lie, and who sums what: every element exactly once, nothing cut, the same on every worker."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.collectives.chunks import BLOCK, cut, strides
from stratagem.collectives.layout import DIRECT_FROM, Layout, packs
from stratagem.collectives.packing import Packing, pieces_of
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
    taken = [np.zeros(region.size, int) for region in layout.regions]
    assert len(layout.rounds) == len(layout.owners) >= 1
    for owned, owners in zip(layout.rounds, layout.owners, strict=True):
        assert len(owned) == workers
        assert owners == tuple(range(len(owners)))
        for pieces in owned:
            for piece in pieces:
                assert piece.start < piece.stop
                taken[piece.region][piece.start : piece.stop] += 1
    assert all((each == 1).all() for each in taken)
    ends = 0
    for start, stop in sorted(set(layout.places)):
        assert start % BLOCK == 0
        assert start >= ends or start == stop
        ends = max(ends, stop)
    assert ends <= layout.nbytes


def test_order_of_packs_is_kept_in_the_rounds() -> None:
    specs = [ArraySpec((10,), np.dtype(np.float32)) for _ in range(3)]
    layout = Layout.plan(specs, 2, bytes_per_pack=1)
    assert [region.arrays for region in layout.regions] == [(0,), (1,), (2,)]
    assert [owned[0][0].region for owned in layout.rounds] == [0, 1, 2]


def test_large_arrays_are_not_packed() -> None:
    large, small = ArraySpec((DIRECT_FROM,), np.dtype(np.int8)), ArraySpec((3,), np.dtype(np.int8))
    layout = Layout.plan([small, large, small], 2)
    assert [(region.arrays, region.is_direct) for region in layout.regions] == [((1,), True), ((0, 2), False)]
    array = np.arange(DIRECT_FROM, dtype=np.int8)
    filled = Packing(layout).fill([np.full(3, 1, np.int8), array, np.full(3, 2, np.int8)])
    assert filled[0].base is array
    assert filled[1].tolist()[:3] == [1, 1, 1]
    assert filled[1].tolist()[64:] == [2, 2, 2]
    assert not filled[1][3:64].any()
    assert [len(piece) for piece in pieces_of(filled, layout.rounds[0][0])] == [DIRECT_FROM, 67]


def test_large_sums_are_shared_out_and_small_ones_are_not() -> None:
    dtype = np.dtype(np.float32)
    assert Layout.plan([ArraySpec((100,), dtype)], 4).owners == ((0,),)
    assert Layout.plan([ArraySpec((3 << 19,), dtype)], 2).owners == ((0, 1),)
    assert Layout.plan([], 4).owners == ((0,),)


@pytest.mark.parametrize("dtype", ["bool", "U3", "O", "datetime64[s]"])
def test_what_is_no_number_is_refused(dtype: Any) -> None:
    with pytest.raises(StrategyError, match="cannot be summed"):
        Layout.plan([ArraySpec((1,), np.dtype(dtype))], 2)
