"""Rows of batches to come: known of as many as steps look ahead, and no longer than that."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stratagem.engines.row_prefetch import RowPrefetcher
from stratagem.tables.stacks import BatchRows


def prefetcher(distance: int) -> RowPrefetcher:
    """One for steps that look this far ahead, whose batches are ids."""
    trainable: Any = SimpleNamespace(
        needed_early=lambda params, batch: BatchRows([batch], [np.arange(len(batch))]),
        needed=lambda params, batch, rng: BatchRows([batch], [np.arange(len(batch))]),
    )
    source: Any = SimpleNamespace(divided=lambda ids: [], client=None)
    return RowPrefetcher(source, trainable, distance)


def batches() -> list[Any]:
    return [np.full(2, number) for number in range(6)]


@pytest.mark.parametrize("distance", [1, 2])
def test_rows_that_came_with_a_push_are_there_in_the_step_of_their_batch(distance: int) -> None:
    rows, all_batches = prefetcher(distance), batches()
    for number, batch in enumerate(all_batches):
        assert rows.has_rows(batch) == (number >= distance)
        later = all_batches[number + distance] if number + distance < len(all_batches) else None
        following = rows.following([], later)
        assert (following is None) == (later is None)
        needed = rows.needed([], batch, lambda: None)  # type: ignore[arg-type, return-value]
        assert (needed.values is not None) == (number >= distance)
        if following is not None:
            following.values = []


@pytest.mark.parametrize("distance", [1, 2])
def test_rows_of_batches_that_are_skipped_are_dropped(distance: int) -> None:
    rows, all_batches = prefetcher(distance), batches()
    for later in all_batches:
        following = rows.following([], later)
        assert following is not None
        following.values = []
    assert [rows.has_rows(batch) for batch in all_batches] == [
        number >= len(all_batches) - distance - 1 for number in range(len(all_batches))
    ]
