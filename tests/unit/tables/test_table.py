"""Tables, as the user describes them: what is refused, and in which words."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg
from stratagem.tables.table import check_tables, uniform

PARAMS = {"w": np.ones(2, np.float32)}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dim": 0}, "table 'users' has dim=0; give a whole number of at least 1"),
        ({"dim": 2.0}, "table 'users' has dim=2.0; give a whole number of at least 1"),
        ({"dim": True}, "table 'users' has dim=True; give a whole number of at least 1"),
        ({"rows": 0}, "table 'users' has rows=0; give a whole number of at least 1"),
        ({"rows": "10"}, "table 'users' has rows='10'; give a whole number of at least 1"),
        ({"admit_after": -1}, "table 'users' has admit_after=-1; give a whole number of at least 0"),
        ({"admit_after": None}, "table 'users' has admit_after=None; give a whole number of at least 0"),
        ({"expire_steps": 0}, "table 'users' has expire_steps=0; give a whole number of at least 1"),
        (
            {"initializer": 0.5},
            "table 'users' has initializer=0.5; give a function initializer(key, (dim,), dtype), or None",
        ),
        (
            {"dtype": "int32"},
            "table 'users' has dtype='int32'; give a floating type such as 'float32' or 'bfloat16'",
        ),
        (
            {"dtype": "real"},
            "table 'users' has dtype='real'; give a floating type such as 'float32' or 'bfloat16'",
        ),
        ({"name": ""}, "a table's name is ''; give a text that is not empty"),
        ({"name": 7}, "a table's name is 7; give a text that is not empty"),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(sg.StrategyError, match=re.escape(message)):
        sg.Table(**{"name": "users", "dim": 4, **wrong})


def test_half_precision_is_a_floating_type() -> None:
    assert sg.Table("users", dim=4, dtype="bfloat16").dtype == "bfloat16"


def test_a_name_is_given_once() -> None:
    tables = [sg.Table("users", dim=2), sg.Table("items", dim=2), sg.Table("users", dim=3)]
    with pytest.raises(sg.StrategyError, match="two tables are called 'users': give each a name of its own"):
        sg.OneDeviceStrategy().init(PARAMS, optax.sgd(0.1), tables=tables)


@pytest.mark.parametrize("tables", [["users"], {"users": 16}, sg.Table("users", 16)])
def test_what_is_no_list_of_tables_is_named(tables: Any) -> None:
    with pytest.raises(
        sg.StrategyError, match=r"tables is .*users.*; give a list of tables: tables=\[sg\.Table"
    ):
        sg.OneDeviceStrategy().init(PARAMS, optax.sgd(0.1), tables=tables)


def test_tables_are_taken_in_their_order() -> None:
    tables = [sg.Table("users", dim=2), sg.Table("items", dim=2)]
    assert check_tables(tables) == tuple(tables)


def test_seed_and_name_alone_decide_what_first_values_are_drawn_from() -> None:
    key = sg.Table("users", dim=2).key
    assert sg.Table("users", dim=9, rows=10, admit_after=3, dtype="bfloat16").key == key
    assert sg.Table("users", dim=2, seed=1).key != key
    assert sg.Table("items", dim=2).key != key
    assert 0 <= key < 2**64


def test_first_values_are_small_by_default() -> None:
    values = uniform(jax.random.key(0), (1000,), jnp.float32)
    assert values.dtype == jnp.float32
    assert -0.05 <= float(values.min()) < -0.045
    assert 0.045 < float(values.max()) <= 0.05
