"""Where the row of an id is, against a dictionary; columns that grow, against an array of zeros."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stratagem.tables.keyed_columns import DirectIndex, GrowingArray, HashIndex, Index, KeyedColumns, mix_bits

BOUND = 20_000
LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
MANY = 6_000
"""More than the segments of a hash table have room for at first."""


class AgainstDictionary(RuleBasedStateMachine):
    """Ids come and go, a few at a time and very many."""

    few: Any
    spread: int

    def __init__(self) -> None:
        super().__init__()
        self.column = GrowingArray((), np.int64)
        self.index = self.made()
        self.known: dict[int, int] = {}
        self.free: list[int] = []
        self.end = 0

    def made(self) -> Index:
        raise NotImplementedError

    def add(self, ids: list[int]) -> None:
        ids = [number for number in ids if number not in self.known]
        reused = [self.free.pop() for _ in range(min(len(ids), len(self.free)))]
        rows = [*reused, *range(self.end, self.end + len(ids) - len(reused))]
        self.end += len(ids) - len(reused)
        self.column.reserve(self.end)
        self.column.array[rows] = ids
        self.index.add(np.array(ids, np.int64), np.array(rows, np.int32))
        self.known.update(zip(ids, rows, strict=True))

    def remove(self, ids: list[int]) -> None:
        self.index.remove(np.array(ids, np.int64))
        self.free += [self.known.pop(number) for number in ids]

    @rule(data=some.data())
    def add_few(self, data: some.DataObject) -> None:
        self.add(data.draw(some.lists(self.few, unique=True, max_size=20)))

    @rule(start=some.integers(0, 3))
    def add_many(self, start: int) -> None:
        self.add([(start * MANY // 2 + number) * self.spread for number in range(MANY)])

    @precondition(lambda self: self.known)
    @rule(data=some.data())
    def remove_few(self, data: some.DataObject) -> None:
        known = sorted(self.known)
        places = data.draw(some.lists(some.integers(0, len(known) - 1), unique=True, max_size=20))
        self.remove([known[place] for place in places])

    @rule(every=some.integers(1, 3))
    def remove_many(self, every: int) -> None:
        self.remove(list(self.known)[::every])

    @rule(data=some.data())
    def find_few(self, data: some.DataObject) -> None:
        ids = data.draw(some.lists(self.few, unique=True, max_size=20))
        found = self.index.find(np.array(ids, np.int64))
        assert found.tolist() == [self.known.get(number, -1) for number in ids]

    @invariant()
    def finds_all(self) -> None:
        ids = np.array(list(self.known), np.int64)
        np.testing.assert_array_equal(self.index.find(ids), list(self.known.values()))


class HashAgainstDictionary(AgainstDictionary):
    few = some.integers(LEAST, MOST) | some.integers(-30, 30) | some.sampled_from([LEAST, LEAST + 1, MOST])
    spread = -(2**33)

    def made(self) -> Index:
        return HashIndex(self.column)


class DirectAgainstDictionary(AgainstDictionary):
    few = some.integers(0, BOUND - 1)
    spread = 1

    def made(self) -> Index:
        return DirectIndex(BOUND)


@pytest.mark.parametrize("machine", [HashAgainstDictionary, DirectAgainstDictionary])
def test_an_index_knows_what_a_dictionary_knows(machine: type[AgainstDictionary]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=10, stateful_step_count=12, deadline=None)
    )


def test_an_index_does_not_grow_with_ids_that_have_gone() -> None:
    ids = GrowingArray((), np.int64)
    index = HashIndex(ids)
    ids.reserve(1000)
    places = index._places
    for number in range(120):
        own = np.arange(number * 1000, number * 1000 + 1000)
        ids.array[:1000] = own
        index.add(own, np.arange(1000, dtype=np.int32))
        np.testing.assert_array_equal(index.find(own), np.arange(1000))
        np.testing.assert_array_equal(index.find(own - 1000), np.full(1000, -1))
        index.remove(own)
    assert len(places.array) < 100_000
    assert index._used.sum() < 30_000  # else it would make room with every update


def test_no_two_words_are_mixed_to_the_same() -> None:
    words = np.concatenate([np.arange(50_000), np.arange(50_000) << 40]).astype(np.uint64)
    assert len(np.unique(mix_bits(words))) == len(np.unique(words))


# Columns.


@given(some.integers(1, 3), some.lists(some.integers(0, 5000), max_size=6))
def test_no_value_moves_when_a_column_grows(width: int, lengths: list[int]) -> None:
    column = GrowingArray((width,), np.int32)
    expected = np.zeros((0, width), np.int32)
    for number, length in enumerate(lengths, 1):
        column.reserve(length)
        assert len(column.array) >= length
        grown = np.zeros((len(column.array), width), np.int32)
        grown[: len(expected)] = expected
        np.testing.assert_array_equal(column.array, grown)
        column.array[length // 2 :] += number
        expected = column.array.copy()


@given(some.sampled_from([1, 3, 8, 4096, 5000]), some.integers(0, 12_000), some.integers(0, 12_000))
def test_cleared_entries_are_zeros_and_no_others(width: int, one: int, other: int) -> None:
    length = 12_000 if width < 10 else 12
    first, last = sorted((one % (length + 1), other % (length + 1)))
    column = GrowingArray((width,), np.uint8, length)
    column.array[:] = 1
    column.clear(first, last)
    expected = np.ones_like(column.array)
    expected[first:last] = 0
    np.testing.assert_array_equal(column.array, expected)


def test_an_entry_may_be_longer_than_a_page() -> None:
    column = GrowingArray((5000,), np.float64)
    assert len(column.array) == 1
    column.reserve(3)
    assert len(column.array) >= 3
    assert column.entry_bytes == 40_000


# Columns whose rows belong to ids.


@pytest.mark.parametrize("bound", [None, BOUND])
def test_rows_that_are_free_are_taken_first(bound: int | None) -> None:
    keyed = KeyedColumns(bound, [((2,), np.float32)])
    first = keyed.add(np.arange(10))
    assert sorted(first) == list(range(10))
    keyed.remove(np.arange(3))
    keyed.remove(np.arange(7, 10))
    assert (len(keyed), keyed.end) == (4, 10)
    second = keyed.add(np.arange(100, 105))
    assert set(second) <= {0, 1, 2, 7, 8, 9}
    assert (len(keyed), keyed.end) == (9, 10)
    third = keyed.add(np.arange(200, 203))
    assert len({*second, *third, *range(3, 7)}) == 12
    assert (len(keyed), keyed.end) == (12, 12)
    ids = np.concatenate([np.arange(3, 7), np.arange(100, 105), np.arange(200, 203)])
    np.testing.assert_array_equal(keyed.ids.array[keyed.find(ids)], ids)
    np.testing.assert_array_equal(keyed.find(np.arange(3)), [-1, -1, -1])
    assert keyed.row_bytes == 16


def test_more_ids_than_an_index_has_places_for_are_hashed() -> None:
    keyed = KeyedColumns(2**40, [])
    ids = np.array([0, 2**39, 2**40 - 1])
    rows = keyed.add(ids)
    np.testing.assert_array_equal(keyed.find(ids), rows)
