"""A shuffled order has every element once, follows from its seed, and is the same part by part."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.data.grain_batches import permute


@given(st.integers(1, 5000), st.integers(0, 2**32 - 1), st.integers(0, 100))
def test_every_element_once_and_any_part_alone(length: int, seed: int, epoch: int) -> None:
    whole = permute(np.arange(length), length, (seed, epoch))
    assert np.array_equal(np.sort(whole), np.arange(length))
    part = np.arange(length)[length // 3 :: 2]
    assert np.array_equal(permute(part, length, (seed, epoch)), whole[part])


@pytest.mark.parametrize("length", [2**40, 10**12 + 7])
def test_long_orders_take_no_memory(length: int) -> None:
    found = permute(np.arange(1000), length, (1, 2))
    assert len(set(found.tolist())) == 1000
    assert found.min() >= 0 and found.max() < length
    assert abs(found.mean() / length - 0.5) < 0.05


def test_seeds_and_epochs_give_other_orders() -> None:
    orders = {
        tuple(permute(np.arange(50), 50, (seed, epoch)).tolist()) for seed in range(9) for epoch in range(9)
    }
    assert len(orders) == 81  # also (1, 2) and (2, 1)


def test_every_element_comes_to_every_place_equally_often() -> None:
    length, orders = 10, 2000
    counts = np.zeros((length, length))
    for seed in range(orders):
        counts[np.arange(length), permute(np.arange(length), length, (seed,))] += 1
    expected = orders / length
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < 81 + 5 * (2 * 81) ** 0.5  # five standard deviations; the seeds are fixed
