"""The rows that one process holds: their first values, their updates, who is admitted, who expires."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from stratagem.tables.row_store import SIZES, RowPrograms, RowSpec, RowStore
from stratagem.tables.table import Table

DIM = 2
NAMES = ["users", "items"]


def first(arrays: Sequence[Any]) -> Sequence[Any]:
    """Values that show what they were drawn from, and a slot of ones."""
    (words,) = arrays
    assert len(words) in SIZES
    return [(words % 1000).astype(np.float32), np.ones(len(words), np.float32)]


def update(arrays: Sequence[Any]) -> Sequence[Any]:
    """Gradients are subtracted; the slot counts the updates of a row, the scalar those of all."""
    values, slots, count, gradients, _ = arrays
    assert len(values) in SIZES
    return [values - gradients, slots + 1, count + 1]


PROGRAMS = RowPrograms(lambda size: first, lambda size: update)


def store(
    key: int = 5, *, bound: int | None = None, admit_after: int = 0, expire_steps: int | None = None
) -> RowStore:
    spec = RowSpec(DIM, "float32", bound, (0,), (key,), (((), "float32"),), admit_after, expire_steps)
    return RowStore(spec, PROGRAMS, [np.int32(0)])


def trained(rows: RowStore, *ids: int, by: float = 1) -> None:
    rows.update(np.array(sorted(ids), np.int64), np.full((len(ids), DIM), by, np.float32), rows.step + 1)


def read(rows: RowStore, *ids: int) -> Any:
    return rows.read(np.array(ids, np.int64))


def listed(rows: RowStore, size: int = 3) -> dict[int, tuple[list[float], float]]:
    """All rows: values and slot."""
    result = {}
    for start in range(0, rows.end, size):
        ids, (values, slots) = rows.page(start, size)
        assert len(ids) <= size
        for number, value, slot in zip(ids, values, slots, strict=True):
            assert number not in result
            result[int(number)] = (value.tolist(), float(slot))
    return result


# First values.


def test_first_values_are_the_same_whoever_asks_first() -> None:
    ids = np.array([-(2**63), -1, 0, 1, 7, 2**40, 2**63 - 1])
    one, other = store(), store()
    values = one.read(ids)
    assert len(np.unique(values, axis=0)) == len(ids)
    np.testing.assert_array_equal(other.read(ids[::-1].copy()), values[::-1])
    for place, number in enumerate(ids):
        np.testing.assert_array_equal(read(store(), number)[0], values[place])


def test_first_values_depend_on_seed_and_name() -> None:
    keys = [Table(name, dim=DIM, seed=seed).key for name in NAMES for seed in (0, 1)]
    values = [read(store(key), 1, 2, 3).tolist() for key in keys]
    assert len({str(each) for each in values}) == len(keys)


def test_tables_of_a_stack_have_the_first_values_of_tables_by_themselves() -> None:
    keys = (11, 12, 13)
    spec = RowSpec(DIM, "float32", 30, (0, 10, 15), keys, (((), "float32"),))
    values = RowStore(spec, PROGRAMS, [np.int32(0)]).read(np.arange(30))
    for key, start, stop in zip(keys, (0, 10, 15), (10, 15, 30), strict=True):
        np.testing.assert_array_equal(values[start:stop], store(key).read(np.arange(stop - start)))


def test_reading_makes_no_row() -> None:
    rows = store()
    read(rows, 1, 2)
    assert len(rows) == 0
    assert listed(rows) == {}


def test_a_row_that_has_expired_begins_again() -> None:
    rows = store(expire_steps=1)
    expected = read(rows, 4).tolist()
    trained(rows, 4, by=100)
    assert read(rows, 4).tolist() != expected
    for _ in range(2):
        trained(rows, 5)
    assert read(rows, 4).tolist() == expected
    trained(rows, 4, by=1)
    assert listed(rows)[4] == ([expected[0][0] - 1, expected[0][1] - 1], 2)


# Updates.


@pytest.mark.parametrize("bound", [None, 100])
def test_only_rows_that_are_touched_change(bound: int | None) -> None:
    rows = store(bound=bound)
    before = read(rows, 1, 2, 3)
    trained(rows, 1, 3, by=2)
    np.testing.assert_array_equal(read(rows, 1, 2, 3), before - np.array([[2], [0], [2]]))
    assert listed(rows).keys() == {1, 3}
    nbytes = 2 * (8 + 4 + 4 * DIM + 4)  # id, step, values, slot
    assert rows.counts() == {"rows": 2, "nbytes": nbytes, "waiting": 0, "expired": 0}


def test_what_all_rows_share_advances_with_no_rows_too() -> None:
    rows = store()
    trained(rows)
    trained(rows, 1)
    trained(rows)
    assert (int(rows.scalars[0]), rows.step, len(rows)) == (3, 3, 1)


@pytest.mark.parametrize("count", [SIZES[-1] - 1, SIZES[-1] + 1, 2 * SIZES[-1] + SIZES[0]])
def test_more_rows_than_the_largest_program_takes(count: int) -> None:
    rows = store()
    ids = np.arange(count) * 3
    gradients = np.arange(count * DIM, dtype=np.float32).reshape(count, DIM)
    before = rows.read(ids)
    rows.update(ids, gradients, 1)
    np.testing.assert_array_equal(rows.read(ids), before - gradients)
    assert int(rows.scalars[0]) == 1
    rows.update(ids[::-1].copy(), gradients[::-1].copy(), 2)
    np.testing.assert_array_equal(rows.read(ids), before - gradients - gradients)
    assert int(rows.scalars[0]) == 2
    assert len(rows) == count
    assert all(slot == 3 for _, slot in listed(rows, 5000).values())


# Who is admitted.


@pytest.mark.parametrize("times", [1, 3])
def test_an_id_trains_after_it_was_seen_often_enough(times: int) -> None:
    rows = store(admit_after=times)
    initial = read(rows, 8)
    for seen in range(1, times + 1):
        trained(rows, 8)
        np.testing.assert_array_equal(read(rows, 8), initial)
        assert rows.counts()["waiting"] == 1, seen
    assert len(rows) == 0
    trained(rows, 8)
    np.testing.assert_array_equal(read(rows, 8), initial - 1)
    trained(rows, 8)
    np.testing.assert_array_equal(read(rows, 8), initial - 2)
    assert (rows.counts()["waiting"], len(rows)) == (0, 1)
    assert int(rows.scalars[0]) == times + 2


def test_gradients_stay_with_their_ids_when_some_are_not_admitted() -> None:
    rows = store(admit_after=1)
    trained(rows, 2, 4)
    before = read(rows, 1, 2, 3, 4)
    ids, gradients = np.arange(1, 5), np.repeat(np.arange(1, 5, dtype=np.float32)[:, None], DIM, 1)
    rows.update(ids, gradients, rows.step + 1)
    np.testing.assert_array_equal(read(rows, 1, 2, 3, 4), before - np.array([[0], [2], [0], [4]]))


# Who expires.


@pytest.mark.parametrize("steps", [1, 4])
def test_a_row_lives_through_so_many_steps_without_it(steps: int) -> None:
    rows = store(expire_steps=steps)
    initial = read(rows, 1)
    trained(rows, 1)
    for _ in range(steps):
        trained(rows, 2)
        np.testing.assert_array_equal(read(rows, 1), initial - 1)
        assert len(rows) == 2
    trained(rows, 2)
    np.testing.assert_array_equal(read(rows, 1), initial)
    assert listed(rows).keys() == {2}
    assert rows.counts()["rows"] == rows.counts()["expired"] == 1


def test_a_row_that_is_touched_in_time_stays() -> None:
    rows = store(expire_steps=1)
    initial = read(rows, 1)
    for _ in range(5):
        trained(rows, 1)
        trained(rows, 2)
    np.testing.assert_array_equal(read(rows, 1), initial - 5)
    assert rows.counts()["expired"] == 0


def test_rows_expire_on_time_though_they_are_swept_later() -> None:
    many = 3000
    rows = store(expire_steps=2)
    ids = np.arange(many)
    initial = rows.read(ids)
    rows.update(ids, np.ones((many, DIM), np.float32), 1)
    for _ in range(3):
        trained(rows, many)
    assert 0 < rows.counts()["expired"] < many
    np.testing.assert_array_equal(rows.read(ids), initial)
    assert listed(rows, 700).keys() == {many}
    last = many - 1
    trained(rows, last)  # not swept yet
    np.testing.assert_array_equal(read(rows, last), initial[[last]] - 1)
    assert listed(rows, 700).keys() == {many, last}
    for _ in range(3):
        trained(rows, many, last)
    assert rows.counts()["rows"] == 2
    assert rows.counts()["expired"] == many


def test_the_places_of_expired_rows_are_used_again() -> None:
    rows = store(expire_steps=1)
    for number in range(50):
        trained(rows, *range(number * 10, number * 10 + 10))
    places = rows.end
    assert places == 30  # of a step and the one before, while those before that are being swept
    assert len(rows) == len(listed(rows)) == 20


def test_sweeping_keeps_up_with_any_number_of_new_rows() -> None:
    rows = store(expire_steps=1)
    for number in range(30):
        trained(rows, *range(number * 5000, number * 5000 + 5000))
    assert sum(len(rows.page(start, 5000)[0]) for start in range(0, rows.end, 5000)) == 10_000
    assert len(rows) < 30_000


@dataclass
class Expected:
    """A store as plain dictionaries."""

    admit_after: int
    expire_steps: int | None
    step: int = 0
    rows: dict[int, tuple[Any, int]] = field(default_factory=dict)
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)

    def expire(self) -> None:
        if self.expire_steps is not None:
            for known in (self.rows, self.seen):
                for number in [
                    each for each, (_, step) in known.items() if self.step - step > self.expire_steps
                ]:
                    del known[number]

    def update(self, ids: Sequence[int], initial: Any, by: float) -> None:
        for number in ids:
            if number not in self.rows:
                seen, _ = self.seen.pop(number, (0, 0))
                if seen < self.admit_after:
                    self.seen[number] = seen + 1, self.step + 1
                    continue
            value, _ = self.rows.get(number, (initial[number], 0))
            self.rows[number] = value - by, self.step + 1
        self.step += 1
        self.expire()


@settings(max_examples=40)
@given(
    some.sampled_from([None, 12]),
    some.integers(0, 2),
    some.none() | some.integers(1, 3),
    some.lists(some.sets(some.integers(0, 11), max_size=6), max_size=25),
)
def test_rows_are_what_plain_dictionaries_say(
    bound: int | None, admit_after: int, expire_steps: int | None, steps: list[set[int]]
) -> None:
    rows = store(bound=bound, admit_after=admit_after, expire_steps=expire_steps)
    everyone = np.arange(12)
    initial = rows.read(everyone)
    expected = Expected(admit_after, expire_steps)
    for number, ids in enumerate(steps, 1):
        trained(rows, *ids, by=number)
        expected.update(sorted(ids), initial, number)
        wanted = [expected.rows.get(each, (initial[each], 0))[0] for each in range(12)]
        np.testing.assert_array_equal(rows.read(everyone), wanted)
        assert listed(rows).keys() == expected.rows.keys()
        assert (len(rows), rows.counts()["waiting"]) == (len(expected.rows), len(expected.seen))
