"""Shuffled batches: every element once, the same from the same seed, and nothing left running."""

import gc
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem.data import shuffle_batch
from stratagem.data.stream_batches import stack
from stratagem.errors import DataError

DEADLINE = 30.0


class Pair(NamedTuple):
    x: Any
    y: Any


@settings(deadline=None, max_examples=50)
@given(
    count=st.integers(0, 60),
    size=st.integers(1, 7),
    remaining=st.integers(0, 20),
    more=st.integers(0, 9),
    seed=st.integers(0, 2**32),
)
def test_every_element_once_and_the_same_again(
    count: int, size: int, remaining: int, more: int, seed: int
) -> None:
    def batches(drop: bool = False) -> list[list[int]]:
        made = shuffle_batch(
            range(count), size, remaining + size + more, remaining, seed, drop_remainder=drop
        )
        return [batch.tolist() for batch in made]

    first = batches()
    assert sorted(x for batch in first for x in batch) == list(range(count))
    assert [len(batch) for batch in first[:-1]] == [size] * (len(first) - 1)
    assert batches() == first
    assert batches(drop=True) == [batch for batch in first if len(batch) == size]
    for at, batch in enumerate(first):  # never from further ahead than what the buffer holds
        assert max(batch) < (at + 1) * size + remaining


def test_it_shuffles() -> None:
    (batch,) = shuffle_batch(range(100), 100, 100, 0, seed=0)
    assert batch.tolist() != list(range(100))
    (other,) = shuffle_batch(range(100), 100, 100, 0, seed=1)
    assert batch.tolist() != other.tolist()


def test_capacity_does_not_change_the_order() -> None:
    small, large = (list(shuffle_batch(range(50), 4, capacity, 10, seed=3)) for capacity in (14, 100))
    assert [batch.tolist() for batch in small] == [batch.tolist() for batch in large]


def test_an_error_comes_where_it_happened() -> None:
    def stream() -> Iterator[int]:
        yield from range(10)
        raise OSError("the disk is gone")

    batches = shuffle_batch(stream(), 2, 100, 2, seed=0)
    seen = [next(batches) for _ in range(4)]  # the fifth would need the eleventh element
    assert len({int(x) for batch in seen for x in batch}) == 8
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert list(batches) == []


def prefetching_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "stratagem-prefetch"]


def all_end() -> bool:
    """Whether all such threads end by themselves, be the machine as slow as it likes."""
    for thread in prefetching_threads():
        thread.join(DEADLINE)
    return not prefetching_threads()


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_the_thread_ends_with_the_iterator(is_forgotten: bool) -> None:
    was_closed = threading.Event()

    def stream() -> Iterator[int]:
        try:
            number = 0
            while True:
                yield number
                number += 1
        finally:
            was_closed.set()

    assert all_end()
    batches = shuffle_batch(stream(), 2, 10, 2, seed=0)
    next(batches)
    (thread,) = prefetching_threads()
    if is_forgotten:
        del batches
        gc.collect()
    else:
        batches.close()
    assert was_closed.wait(DEADLINE)
    thread.join(DEADLINE)
    assert not thread.is_alive()


def test_no_thread_before_the_first_batch_and_none_after_the_last() -> None:
    assert all_end()
    batches = shuffle_batch(range(10), 2, 10, 2)
    assert prefetching_threads() == []
    assert len(list(batches)) == 5
    assert all_end()


def test_reads_no_further_ahead_than_capacity() -> None:
    read = 0

    def stream() -> Iterator[int]:
        nonlocal read
        for number in range(1000):
            read = number + 1
            yield number

    batches = shuffle_batch(stream(), 2, 10, 2)
    next(batches)
    batches.close()
    assert read <= 10 + 2 + 1, "the capacity, what was drawn, and the one in the thread's hand"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [((0, 10, 2), "at least 1"), ((1, 10, -1), "at least 0"), ((4, 10, 8), "give at least 12")],
)
def test_wrong_sizes(arguments: tuple[int, int, int], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        shuffle_batch([], *arguments)


def test_structures_are_stacked() -> None:
    elements = [{"p": Pair(n, n / 2), "l": [np.full(3, n)], "b": b"\0" * n, "n": None} for n in range(3)]
    batch = stack(elements)
    assert isinstance(batch["p"], Pair)
    assert batch["p"].x.tolist() == [0, 1, 2]
    assert batch["l"][0].shape == (3, 3)
    assert batch["b"].tolist() == [b"", b"\0", b"\0\0"]
    assert batch["n"] is None


@pytest.mark.parametrize(
    ("elements", "problem"),
    [
        ([{"a": np.zeros(2)}, {"a": np.zeros(3)}], r"element\['a'\] has shapes \(2,\), \(3,\)"),
        ([{"a": 1}, {"b": 1}], "does not have the same keys"),
        ([(1, 2), (1,)], "does not have 2 parts"),
        ([(1, 2), [1, 2]], "is a tuple in one element of the stream and a list in another"),
        ([(1, None), (1, 2)], r"element\[1\] is a NoneType"),
    ],
)
def test_structures_that_differ(elements: list[object], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        stack(elements)
