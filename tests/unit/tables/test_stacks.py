"""Tables that are kept together, and which rows of them a batch needs."""

from typing import Any

import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from stratagem.errors import DataError
from stratagem.tables.lookups import Lookup
from stratagem.tables.stacks import BatchReader, pad_rows, padded_size, stack_tables
from stratagem.tables.table import Table, uniform

ROWS = [5, 1, 7]
ALIKE = [Table(f"feature {rows}", dim=2, rows=rows, seed=rows) for rows in ROWS]


def lookups(*names: str) -> list[Lookup]:
    return [Lookup(name, 0, f"batch[{name!r}]", ()) for name in names]


def test_tables_that_differ_in_name_seed_and_rows_are_one_stack() -> None:
    (stack,) = stack_tables(ALIKE)
    assert stack.tables == tuple(ALIKE)
    assert stack.offsets == (0, 5, 6)
    assert stack.bound == 13


@pytest.mark.parametrize(
    "other",
    [
        {"dim": 3},
        {"dtype": "bfloat16"},
        {"optimizer": optax.sgd(0.1)},
        {"initializer": uniform},
        {"admit_after": 1},
        {"expire_steps": 9},
    ],
    ids=lambda other: next(iter(other)),
)
def test_tables_that_are_trained_otherwise_are_kept_apart(other: dict[str, Any]) -> None:
    table = Table("other", **{"dim": 2, "rows": 4, **other})
    assert [stack.tables for stack in stack_tables([ALIKE[0], table, ALIKE[1]])] == [
        (ALIKE[0], ALIKE[1]),
        (table,),
    ]


def test_a_table_of_any_ids_is_by_itself() -> None:
    tables = [Table("a", dim=2), Table("b", dim=2)]
    assert [(stack.tables, stack.offsets, stack.bound) for stack in stack_tables(tables)] == [
        ((tables[0],), (0,), None),
        ((tables[1],), (0,), None),
    ]


@settings(max_examples=40)
@given(some.data())
def test_places_lead_from_every_look_up_to_its_rows(data: some.DataObject) -> None:
    tables = [*ALIKE, Table("any", dim=2), Table("any, too", dim=2)]
    stacks = stack_tables(tables)
    names = data.draw(some.lists(some.sampled_from([table.name for table in tables]), max_size=5))
    by_name = {table.name: table for table in tables}
    asked = []
    for name in names:
        rows = by_name[name].rows
        numbers = some.integers(-(2**63), 2**63 - 1) if rows is None else some.integers(0, rows - 1)
        drawn = data.draw(some.lists(numbers, max_size=6))
        shape = (len(drawn) // 2, 2) if len(drawn) % 2 == 0 else (len(drawn),)
        asked.append(np.array(drawn, np.int64).reshape(shape))
    reader = BatchReader(stacks)
    needed = reader.rows(lookups(*names), asked)
    assert len(needed.ids) == len(stacks)
    for ids in needed.ids:
        assert ids.dtype == np.int64
        assert (np.diff(ids.astype(object)) > 0).all()
    offsets = {
        table.name: offset
        for stack in stacks
        for table, offset in zip(stack.tables, stack.offsets, strict=True)
    }
    by_table = reader.by_table(needed.ids)
    for name, own, places in zip(names, asked, needed.places, strict=True):
        assert places.dtype == np.int32
        np.testing.assert_array_equal(by_table[name][places] - offsets[name], own)
    used = sum(len(ids) for ids in needed.ids)
    pairs = {(name, number) for name, own in zip(names, asked, strict=True) for number in own.flat}
    assert used == len(pairs)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (
            [[0, 4], [5, 1]],
            r"table 'feature 5' has rows=5, so its ids are 0 to 4; batch\['feature 5'\]\[1, 0\] is 5",
        ),
        ([3, -1], r"batch\['feature 5'\]\[1\] is -1\. Give the table more rows, or rows=None for any ids"),
        (9, r"batch\['feature 5'\]\[\] is 9"),
    ],
)
def test_an_id_that_is_not_of_its_table_is_named(ids: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        BatchReader(stack_tables(ALIKE)).rows(lookups("feature 5"), [np.asarray(ids)])


def test_few_numbers_of_rows_are_compiled_for() -> None:
    assert [padded_size(count) for count in (0, 1, 64, 65, 128, 1000)] == [64, 64, 64, 128, 128, 1024]
    full = np.ones((64, 3), np.float32)
    assert pad_rows(full) is full
    result = pad_rows(np.ones((65, 3), np.float32))
    assert result.shape == (128, 3)
    assert result.dtype == np.float32
    assert result[:65].all()
    assert not result[65:].any()
