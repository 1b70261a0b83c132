"""A table, looked at: rows are looked up, iterated over and exported."""

from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
from safetensors.numpy import load_file

import stratagem as sg
from stratagem.engines.local_tables import LocalRows
from stratagem.errors import DataError, StrategyError
from stratagem.tables.row_source import TableView, table_view
from stratagem.tables.table import Table

DIM = 3
TRAINED = {"users": [-5, 7, 2**40], "small": [0, 3], "large": [0, 9, 4, 2]}
EXTREMES = [-(2**63), 2**63 - 1]


@pytest.fixture(scope="module")
def rows() -> LocalRows:
    """A table of any ids, two that are stacked, and one that nothing has trained; gradients were -1, the rate 1."""
    tables = [
        Table("users", dim=DIM),
        Table("small", dim=DIM, rows=4),
        Table("large", dim=DIM, rows=10, seed=1),
        Table("untrained", dim=DIM, dtype="bfloat16"),
    ]
    rows = LocalRows(tables, optax.sgd(1.0))
    users, both, _ = rows.stores
    users.update(np.array(TRAINED["users"]), np.full((3, DIM), -1, np.float32), 1)
    ids = np.array([*TRAINED["small"], *(4 + number for number in TRAINED["large"])])
    both.update(ids, np.full((len(ids), DIM), -1, np.float32), 1)
    return rows


def all_of(view: TableView, size: int) -> dict[int, Any]:
    pages = list(view.items(size))
    assert all(0 < len(ids) == len(values) <= size for ids, values in pages)
    return {int(number): row for ids, values in pages for number, row in zip(ids, values, strict=True)}


@pytest.mark.parametrize("name", TRAINED)
def test_a_view_has_as_many_rows_as_were_trained(rows: LocalRows, name: str) -> None:
    assert len(table_view(rows, name)) == len(TRAINED[name])


def test_lookups_have_the_shape_of_the_ids(rows: LocalRows) -> None:
    view = table_view(rows, "users")
    for shape in [(), (1,), (2, 3), (0,), (2, 0)]:
        values = view.lookup(np.full(shape, 7))
        assert isinstance(values, np.ndarray)
        assert (values.shape, values.dtype) == ((*shape, DIM), np.dtype(np.float32))
    np.testing.assert_array_equal(view.lookup([[7, 8], [8, 7]])[1, 1], view.lookup(7))


@pytest.mark.parametrize("name", ["small", "large"])
def test_trained_rows_are_found_and_others_have_their_first_values(rows: LocalRows, name: str) -> None:
    view = table_view(rows, name)
    own = next(table for stack in rows.stacks for table in stack.tables if table.name == name)
    assert own.rows is not None
    untrained = table_view(LocalRows([own], optax.sgd(1.0)), name).lookup(np.arange(own.rows))
    values = view.lookup(np.arange(own.rows))
    is_trained = np.isin(np.arange(own.rows), TRAINED[name])
    np.testing.assert_array_equal(values[~is_trained], untrained[~is_trained])
    np.testing.assert_array_equal(values[is_trained], untrained[is_trained] + 1)
    assert len(view) == len(TRAINED[name])


def test_any_id_can_be_looked_up_in_a_table_of_any_ids(rows: LocalRows) -> None:
    values = table_view(rows, "users").lookup(EXTREMES)
    assert np.abs(values).max() <= 0.05
    assert (values[0] != values[1]).all()


@pytest.mark.parametrize(
    ("name", "ids", "message"),
    [
        ("small", [0, 4], r"table 'small' has ids 0 to 3; got 4"),
        ("large", [[3, -1]], r"table 'large' has ids 0 to 9; got -1"),
        ("users", [1.0], r"table 'users' was asked for ids of type float64; ids are integers"),
        ("users", ["a"], r"table 'users' was asked for ids of type <U1; ids are integers"),
        ("users", [2**63], rf"table 'users' was asked for the id {2**63}; ids are signed 64-bit integers"),
    ],
)
def test_ids_that_are_not_of_the_table(rows: LocalRows, name: str, ids: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        table_view(rows, name).lookup(ids)


@pytest.mark.parametrize("size", [1, 2, 4096])
@pytest.mark.parametrize("name", TRAINED)
def test_items_are_all_trained_rows_some_at_a_time(rows: LocalRows, name: str, size: int) -> None:
    view = table_view(rows, name)
    items = all_of(view, size)
    assert items.keys() == set(TRAINED[name])
    for number, value in items.items():
        np.testing.assert_array_equal(view.lookup(number), value)


@pytest.mark.parametrize("size", [0, -1, 2.0, None])
def test_pages_that_have_no_size(rows: LocalRows, size: Any) -> None:
    with pytest.raises(StrategyError, match=r"items\(size=.*\): give a whole number of at least 1"):
        next(table_view(rows, "users").items(size))


@pytest.mark.parametrize("name", TRAINED)
def test_an_export_is_read_by_safetensors(rows: LocalRows, name: str, tmp_path: Path) -> None:
    view, path = table_view(rows, name), tmp_path / "rows.safetensors"
    path.write_bytes(b"what was there before")
    view.export(path)
    arrays = load_file(path)
    assert arrays.keys() == {"ids", "values"}
    assert arrays["ids"].dtype == np.int64
    assert sorted(arrays["ids"]) == sorted(TRAINED[name])
    np.testing.assert_array_equal(arrays["values"], view.lookup(arrays["ids"]))
    assert [each.name for each in tmp_path.iterdir()] == ["rows.safetensors"]


def test_an_export_of_nothing_and_one_in_half_precision(tmp_path: Path) -> None:
    rows = LocalRows([Table("users", dim=DIM, dtype="bfloat16")], optax.sgd(1.0))
    view = table_view(rows, "users")
    view.export(tmp_path / "nothing.safetensors")
    assert load_file(tmp_path / "nothing.safetensors")["values"].shape == (0, DIM)
    values = view.lookup([1, 2])
    rows.stores[0].update(np.array([1, 2]), np.zeros((2, DIM), values.dtype), 1)
    view.export(str(tmp_path / "half.safetensors"))
    arrays = load_file(tmp_path / "half.safetensors")
    assert arrays["values"].dtype == values.dtype
    np.testing.assert_array_equal(arrays["values"], values)


def test_a_table_that_is_not_there(rows: LocalRows) -> None:
    wanted = r"there is no table 'shops'; there are \['users', 'small', 'large', 'untrained'\]"
    with pytest.raises(StrategyError, match=wanted):
        table_view(rows, "shops")


def test_a_state_without_tables() -> None:
    strategy = sg.OneDeviceStrategy()
    state = strategy.init({"w": np.ones(2, np.float32)}, optax.sgd(0.1))
    with pytest.raises(StrategyError, match=r"this state has no tables: give some to init, as tables="):
        strategy.table(state, "users")
    with pytest.raises(
        StrategyError, match=r"was given a dict; give it the state that init made, or ask the layer"
    ):
        strategy.table({}, "users")  # type: ignore[arg-type]


def test_rows_that_are_longer_than_a_page_of_memory() -> None:
    view = table_view(LocalRows([Table("wide", dim=3000)], optax.sgd(1.0)), "wide")
    assert len(view) == 0
    assert view.lookup([1, 2]).shape == (2, 3000)
