"""Which rows batches need: ids each once, however large they are; and entries of columns, set as single things."""

from typing import Any

import numpy as np
import pytest

from stratagem.errors import DataError
from stratagem.tables.keyed_columns import GrowingArray
from stratagem.tables.lookups import Lookup
from stratagem.tables.stacks import BatchReader, stack_tables, unique_ids
from stratagem.tables.table import Table


@pytest.mark.parametrize("count", [0, 1, 2, 255, 256, 257])
@pytest.mark.parametrize(("least", "most"), [(0, 50), (0, 1 << 62), (-50, 50), (-(1 << 63), (1 << 63) - 1)])
def test_ids_are_numbered_as_numpy_would(count: int, least: int, most: int) -> None:
    random = np.random.default_rng(count)
    ids = random.integers(least, most, count)
    own, places = unique_ids(ids)
    expected, expected_places = np.unique(ids, return_inverse=True)
    np.testing.assert_array_equal(own, expected)
    np.testing.assert_array_equal(places, expected_places)
    assert (own.dtype, places.dtype) == (np.dtype(np.int64), np.dtype(np.int32))


def test_ids_are_not_changed_when_they_are_numbered() -> None:
    ids = np.array([5, 3, 5])
    unique_ids(ids)
    assert ids.tolist() == [5, 3, 5]


def look_up(tables: list[Table], **ids: list[int]) -> Any:
    lookups = [Lookup(name, 0, f"batch[{name!r}]", np.shape(own)) for name, own in ids.items()]
    return BatchReader(stack_tables(tables)).rows(lookups, [np.array(own) for own in ids.values()])


def test_tables_of_a_stack_have_ranges_of_its_ids() -> None:
    found = look_up([Table("a", 2, 10), Table("b", 2, 5)], b=[4, 0, 4], a=[9, 0])
    assert [each.tolist() for each in found.ids] == [[0, 9, 10, 14]]
    assert [each.tolist() for each in found.places] == [[3, 2, 3], [1, 0]]


def test_a_table_that_nobody_looks_up() -> None:
    found = look_up([Table("a", 2, 10), Table("b", 2), Table("c", 3, 5)], b=[7, -7])
    assert [each.tolist() for each in found.ids] == [[], [-7, 7], []]


@pytest.mark.parametrize(("a", "b"), [([1], [5]), ([1], [-1]), ([10], [0]), ([1, 2], [0, 1 << 40])])
def test_an_id_that_is_not_of_its_table_is_named(a: list[int], b: list[int]) -> None:
    wrong = next(each for each in [*b, *a] if each in (5, -1, 10, 1 << 40))
    with pytest.raises(DataError, match=rf"is {wrong}\. Give the table more rows"):
        look_up([Table("a", 2, 10), Table("b", 2, 5)], a=a, b=b)


def test_one_table_knows_its_range_too() -> None:
    with pytest.raises(DataError, match=r"table 'a' has rows=10, .* batch\['a'\]\[1\] is -1"):
        look_up([Table("a", 2, 10)], a=[3, -1])


@pytest.mark.parametrize(
    ("shape", "dtype"), [((16,), "float32"), ((), "int32"), ((1,), "float16"), ((2, 3), "float64")]
)
def test_entries_of_a_column_are_put_where_they_belong(shape: tuple[int, ...], dtype: str) -> None:
    column = GrowingArray(shape, dtype)
    column.reserve(100)
    expected = np.array(column.array)
    random = np.random.default_rng(0)
    for count in (0, 1, 60):
        places = random.permutation(100)[:count].astype(np.int32)
        values = random.integers(1, 9, (count, *shape)).astype(dtype)
        column.put(places, values)
        expected[places] = values
        np.testing.assert_array_equal(column.array, expected)
