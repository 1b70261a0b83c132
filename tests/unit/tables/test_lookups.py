"""Which rows a loss function looks up: known before it is computed, or refused."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.errors import DataError, StrategyError
from stratagem.tables.lookups import TracedLoss
from stratagem.tables.stacks import BatchReader, stack_tables
from stratagem.tables.table import Table

DIM = 2
TABLES = [Table("users", dim=DIM), Table("items", dim=DIM)]
PARAMS = {"w": np.ones(DIM, np.float32), "place": np.int32(1)}
IDS = np.array([[3, 1], [1, 5], [3, 3]], np.int32)
EXTREMES = np.array([2**40, -(2**63), 2**63 - 1, 5], np.int64)


def key(seed: int = 7) -> jax.Array:
    return jax.random.key(seed)


def traced(loss: Callable[..., Any], batch: Any) -> TracedLoss:
    """A loss of (batch, rows), traced."""
    return TracedLoss(lambda params, batch, rows, rng: loss(batch, rows), TABLES, PARAMS, batch)


def ids_of(loss: Callable[..., Any], batch: Any) -> list[Any]:
    return traced(loss, batch).ids(batch, key)


def value_of(loss: TracedLoss, batch: Any, contents: Callable[[Any], Any]) -> Any:
    """What a loss is if the rows of ids are these."""
    reader = BatchReader(stack_tables(TABLES))
    needed = reader.rows(loss.lookups, loss.ids(batch, key))
    rows = reader.by_table([contents(ids).astype(np.float32) for ids in needed.ids])
    return loss.loss(PARAMS, batch, key(), rows, needed.places)


def two_numbers(ids: Any) -> Any:
    return np.stack([ids, ids * 10], axis=-1)


# What is found.


def test_ids_of_the_batch_keep_their_bits() -> None:
    loss = traced(lambda batch, rows: rows["users"](batch["user"]).sum(), {"user": EXTREMES})
    (lookup,) = loss.lookups
    assert (lookup.table, lookup.leaf, lookup.where) == ("users", 0, "batch['user']")
    (ids,) = loss.ids({"user": EXTREMES}, key)
    assert ids.dtype == np.int64
    np.testing.assert_array_equal(ids, EXTREMES)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.uint64])
def test_ids_of_any_integer_type_become_64_bits(dtype: Any) -> None:
    most = min(np.iinfo(dtype).max, np.iinfo(np.int64).max)
    (ids,) = ids_of(lambda batch, rows: rows["users"](batch).sum(), np.array([0, most], dtype))
    assert ids.dtype == np.int64
    assert ids.tolist() == [0, most]


def test_computed_ids_are_computed() -> None:
    batch: dict[str, Any] = {
        "country": np.arange(6, dtype=np.int64).reshape(2, 3),
        "day": np.full((2, 3), 7, np.int32),
    }
    loss = traced(lambda batch, rows: rows["users"](batch["country"] * 10 + batch["day"]).sum(), batch)
    assert loss.lookups[0].leaf is None
    (ids,) = loss.ids(batch, key)
    assert ids.dtype == np.int64
    np.testing.assert_array_equal(ids, batch["country"] * 10 + 7)


def test_ids_may_be_the_same_in_every_batch() -> None:
    table = np.array([[4, 2], [0, 9]])

    def loss(batch: Any, rows: Any) -> Any:
        return rows["users"](table).sum() + rows["items"](3).sum() + rows["items"](jnp.arange(2)).sum()

    ids = ids_of(loss, np.ones(3, np.float32))
    assert [each.tolist() for each in ids] == [[[4, 2], [0, 9]], 3, [0, 1]]


def plus_nothing(look_up: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda ids: look_up(ids) + 0


WAYS: dict[str, Callable[..., Any]] = {
    "plainly": lambda look_up, ids: look_up(ids),
    "in jit": lambda look_up, ids: jax.jit(look_up)(ids),
    "in jit in jit": lambda look_up, ids: jax.jit(plus_nothing(jax.jit(look_up)))(ids),
    "in vmap": lambda look_up, ids: jax.vmap(look_up)(ids),
    "in vmap of jit": lambda look_up, ids: jax.vmap(jax.vmap(jax.jit(look_up)))(ids),
    "in remat": lambda look_up, ids: jax.checkpoint(look_up)(ids),
    "in vmap of columns": lambda look_up, ids: jax.vmap(look_up, in_axes=1, out_axes=1)(ids),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_look_up_may_stand(way: str) -> None:
    def loss_fn(batch: Any, rows: Any) -> Any:
        weights = jnp.arange(1, IDS.size + 1).reshape(*IDS.shape, 1)
        found = WAYS[way](rows["users"], batch)
        assert found.shape == (*IDS.shape, DIM)
        return (found * weights).sum()

    loss = traced(loss_fn, IDS)
    (ids,) = loss.ids(IDS, key)
    assert sorted(ids.reshape(-1)) == sorted(IDS.reshape(-1))
    expected = (two_numbers(IDS) * np.arange(1, IDS.size + 1).reshape(*IDS.shape, 1)).sum()
    assert float(value_of(loss, IDS, two_numbers)) == expected


@pytest.mark.parametrize("way", sorted(WAYS.keys() - {"in vmap of columns"}))
def test_ids_of_the_batch_keep_their_bits_wherever_they_are_looked_up(way: str) -> None:
    wide = IDS.astype(np.int64) + 2**40
    (ids,) = ids_of(lambda batch, rows: WAYS[way](rows["users"], batch).sum(), wide)
    np.testing.assert_array_equal(ids, wide)


def test_a_function_that_is_called_twice_looks_up_twice() -> None:
    offset = np.array([100, 200])

    def loss_fn(batch: Any, rows: Any) -> Any:
        shifted = jax.jit(lambda ids, by: rows["users"](ids + offset * by))
        return shifted(batch, 1).sum() + 1000 * shifted(batch + 1, 2).sum()

    loss = traced(loss_fn, IDS)
    first, second = loss.ids(IDS, key)
    np.testing.assert_array_equal(first, IDS + offset)
    np.testing.assert_array_equal(second, IDS + 1 + 2 * offset)
    expected = two_numbers(first).sum() + 1000 * two_numbers(second).sum()
    assert float(value_of(loss, IDS, two_numbers)) == expected


def test_gradients_of_a_row_are_summed_over_its_positions() -> None:
    loss = traced(lambda batch, rows: (rows["users"](batch) * batch[..., None]).sum(), IDS)
    reader = BatchReader(stack_tables(TABLES))
    needed = reader.rows(loss.lookups, loss.ids(IDS, key))
    values = jnp.zeros((len(needed.ids[0]), DIM))
    gradients = jax.grad(
        lambda users: loss.loss(PARAMS, IDS, key(), {"users": users, "items": values}, needed.places)
    )(values)
    assert needed.ids[0].tolist() == [1, 3, 5]
    np.testing.assert_array_equal(gradients, [[2, 2], [9, 9], [5, 5]])


def test_derivatives_within_a_loss_see_rows_as_constants() -> None:
    def loss_fn(params: Any, batch: Any, rows: Any, rng: Any) -> Any:
        slope = jax.grad(lambda w: (rows["users"](batch) @ w).sum())(params["w"])
        return slope.sum()

    loss = TracedLoss(loss_fn, TABLES, PARAMS, IDS)
    assert float(value_of(loss, IDS, two_numbers)) == two_numbers(IDS).sum()


def test_what_a_loss_prints_is_nothing_that_ids_depend_on(capsys: pytest.CaptureFixture[str]) -> None:
    def loss_fn(params: Any, batch: Any, rows: Any, rng: Any) -> Any:
        found = rows["users"](batch + 1)
        jax.debug.print("{} of {}", found.sum(), params["place"])
        return found.sum()

    loss = TracedLoss(loss_fn, TABLES, PARAMS, IDS)
    np.testing.assert_array_equal(loss.ids(IDS, key)[0], IDS + 1)
    jax.effects_barrier()
    assert capsys.readouterr().out == ""
    total = value_of(loss, IDS, two_numbers)
    jax.effects_barrier()
    assert capsys.readouterr().out == f"{float(total)} of 1\n"


def test_a_loss_may_ask_which_tables_there_are() -> None:
    def loss_fn(batch: Any, rows: Any) -> Any:
        assert list(rows) == ["users", "items"]
        assert "users" in rows
        assert "shops" not in rows
        return sum(rows[name](batch).sum() for name in rows)

    assert [each.table for each in traced(loss_fn, IDS).lookups] == ["users", "items"]


def test_a_table_may_be_left_out() -> None:
    loss = traced(lambda batch, rows: jnp.float32(len(rows)) + 0 * batch.sum(), IDS)
    assert loss.lookups == []
    assert float(value_of(loss, IDS, two_numbers)) == len(TABLES)


# What is drawn.


def test_ids_may_be_drawn_from_the_key_of_the_step() -> None:
    def loss_fn(params: Any, batch: Any, rows: Any, rng: Any) -> Any:
        return rows["items"](jax.random.randint(rng, (50,), 0, 1000) + batch[0]).sum()

    loss = TracedLoss(loss_fn, TABLES, PARAMS, np.array([5000]))
    (one,), (again,), (other,) = (loss.ids(np.array([5000]), partial(key, seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, jax.random.randint(key(1), (50,), 0, 1000) + 5000)
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_no_key_is_made_that_no_id_needs() -> None:
    def made() -> jax.Array:
        raise AssertionError("asked for a key")

    loss = traced(lambda batch, rows: rows["users"](batch).sum(), IDS)
    np.testing.assert_array_equal(loss.ids(IDS, made)[0], IDS)


# What is refused.


def test_ids_that_depend_on_parameters() -> None:
    with pytest.raises(StrategyError, match=r"ids of table 'users' depend on parameters: .* batch and rng"):
        TracedLoss(
            lambda params, batch, rows, rng: rows["users"](batch + params["place"]).sum(), TABLES, PARAMS, IDS
        )
    with pytest.raises(StrategyError, match="ids of table 'users' depend on parameters"):
        TracedLoss(lambda params, batch, rows, rng: rows["users"](params["place"]).sum(), TABLES, PARAMS, IDS)


def test_ids_that_depend_on_rows() -> None:
    def loss_fn(batch: Any, rows: Any) -> Any:
        nearest = rows["users"](batch).argmax(axis=-1)
        return rows["items"](nearest).sum()

    with pytest.raises(StrategyError, match="ids of table 'items' depend on rows of table 'users'"):
        traced(loss_fn, IDS)


def scanned(batch: Any, rows: Any) -> Any:
    return jax.lax.scan(lambda total, ids: (total + rows["users"](ids).sum(), None), 0.0, batch)[0]


def repeated(batch: Any, rows: Any) -> Any:
    return jax.lax.while_loop(lambda total: total < 9, lambda total: total + rows["users"](batch).sum(), 0.0)


def perhaps(batch: Any, rows: Any) -> Any:
    return jax.lax.cond(batch.sum() > 0, lambda ids: rows["users"](ids).sum(), lambda _: 0.0, batch)


@pytest.mark.parametrize(("loss_fn", "name"), [(scanned, "scan"), (repeated, "while"), (perhaps, "cond")])
def test_a_look_up_in_a_loop_or_a_branch(loss_fn: Callable[..., Any], name: str) -> None:
    wanted = f"looks rows of a table up inside {name}: .*; look them up outside of it and use the rows inside"
    with pytest.raises(StrategyError, match=wanted):
        traced(loss_fn, IDS)
    with pytest.raises(StrategyError, match=wanted):
        traced(lambda batch, rows: jax.jit(lambda ids: loss_fn(ids, rows))(batch), IDS)


def test_rows_may_be_used_in_a_loop() -> None:
    def loss_fn(batch: Any, rows: Any) -> Any:
        return jax.lax.scan(lambda total, row: (total + row.sum(), None), 0.0, rows["users"](batch))[0]

    assert float(value_of(traced(loss_fn, IDS), IDS, two_numbers)) == two_numbers(IDS).sum()


def test_ids_that_are_no_integers() -> None:
    with pytest.raises(
        StrategyError, match=r"table 'users' was asked for ids of type float32\[3, 2\]; ids are"
    ):
        traced(lambda batch, rows: rows["users"](batch).sum(), IDS.astype(np.float32))


def test_a_table_that_init_was_not_given() -> None:
    wanted = (
        r"looks rows up in 'shops', and init was given the tables \['users', 'items'\]: give it tables=\[\.\.\., "
        r"sg\.Table\('shops', \.\.\.\)\] too"
    )
    with pytest.raises(StrategyError, match=wanted):
        traced(lambda batch, rows: rows["shops"](batch).sum(), IDS)


@pytest.mark.parametrize(
    "value", [np.int64(2**31), np.int64(-(2**31) - 1), np.uint64(2**32)], ids=["large", "small", "unsigned"]
)
def test_values_that_would_be_cut_where_ids_are_computed(value: Any) -> None:
    batch = np.array([1, value], value.dtype)
    with pytest.raises(DataError, match=f"ids are computed from {value}, and JAX computes with 32 bits"):
        ids_of(lambda batch, rows: rows["users"](batch // 2).sum(), batch)


def test_constants_that_would_be_cut() -> None:
    with pytest.raises(DataError, match=f"ids are computed from {2**40}, and JAX computes with 32 bits"):
        traced(lambda batch, rows: rows["users"](np.array([2**40])).sum(), IDS)


def test_nothing_is_cut_where_jax_computes_with_64_bits() -> None:
    with jax.enable_x64(True):
        (ids,) = ids_of(lambda batch, rows: rows["users"](batch + 1).sum(), np.array([2**40]))
    assert ids.tolist() == [2**40 + 1]


def test_only_what_ids_are_computed_from_has_to_be_narrow() -> None:
    batch = {"user": EXTREMES, "day": np.arange(4)}
    users, days = ids_of(
        lambda batch, rows: rows["users"](batch["user"]).sum() + rows["items"](batch["day"] * 2).sum(), batch
    )
    np.testing.assert_array_equal(users, EXTREMES)
    np.testing.assert_array_equal(days, [0, 2, 4, 6])


def test_unsigned_ids_beyond_what_is_signed() -> None:
    with pytest.raises(DataError, match=rf"batch\['user'\] has the id {2**63}; ids are signed 64-bit"):
        ids_of(
            lambda batch, rows: rows["users"](batch["user"]).sum(), {"user": np.array([1, 2**63], np.uint64)}
        )
