"""Rows of batches, and who gets which."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.engines.rows import count_rows, share_of, take_rows
from stratagem.errors import DataError, StrategyError
from stratagem.strategies import InputContext


@given(st.integers(0, 1000), st.integers(1, 20))
def test_shares_cover_all_rows_and_differ_by_at_most_one(rows: int, count: int) -> None:
    shares = [share_of(rows, index, count) for index in range(count)]
    assert [row for share in shares for row in range(rows)[share]] == list(range(rows))
    sizes = [share.stop - share.start for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_arrays_without_rows_go_along() -> None:
    batch = {"x": np.arange(6), "scale": np.float32(2)}
    assert count_rows(batch) == 6
    part = take_rows(batch, slice(2, 4))
    np.testing.assert_array_equal(part["x"], [2, 3])
    assert part["scale"] == 2


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((np.zeros(3), np.zeros(4)), r"\[0\]: 3, \[1\]: 4"),
        (np.float32(1), "no array with rows"),
    ],
)
def test_batches_without_a_number_of_rows(batch: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        count_rows(batch)


def test_input_context() -> None:
    context = InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)
    assert context.per_replica_batch_size(64) == 16
    with pytest.raises(StrategyError, match="30 does not divide over 4 replicas"):
        context.per_replica_batch_size(30)
