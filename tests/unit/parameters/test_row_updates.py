"""Optimizers of tables: which treat every row by itself, and which would change rows that nothing touched."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stratagem.errors import StrategyError
from stratagem.parameters.row_updates import row_update
from stratagem.tables.table import Table

DIM = 4
USERS = Table("users", dim=DIM)
DENSE = {
    "sgd": optax.sgd(0.1),
    "adagrad": optax.adagrad(0.1),
    "clip": optax.chain(optax.clip(0.5), optax.sgd(0.1)),
    "schedule": optax.sgd(optax.linear_schedule(0.1, 0.0, 10)),
    "hyperparameters": optax.inject_hyperparams(optax.sgd)(learning_rate=0.1),
}
LAZY = {
    "adam": optax.adam(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adamw": optax.adamw(0.1),
    "rmsprop": optax.rmsprop(0.1),
    "decay": optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1)),
}
MIXING = {
    "lamb": optax.lamb(0.1),
    "lars": optax.lars(0.1),
    "adafactor": optax.adafactor(0.1),
    "muon": optax.contrib.muon(0.1),
    "clip_by_global_norm": optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
}


@pytest.mark.parametrize("name", DENSE)
def test_what_a_gradient_of_zeros_does_not_change_is_not_lazy(name: str) -> None:
    assert not row_update(USERS, DENSE[name]).is_lazy


@pytest.mark.parametrize("name", LAZY)
def test_what_a_gradient_of_zeros_changes_is_lazy(name: str) -> None:
    assert row_update(USERS, LAZY[name]).is_lazy


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_rows_is_refused_with_the_reason(name: str) -> None:
    wanted = (
        r"^the optimizer of table 'users' does not treat every row by itself \(.*mixed by `reduce_sum` at .*\), so rows "
        r"cannot be updated without the others: give the table another one, such as sg\.Table\(\.\.\., optimizer=optax"
    )
    with pytest.raises(StrategyError, match=wanted):
        row_update(USERS, MIXING[name])


def test_gathering_gradients_over_steps_is_refused() -> None:
    gathering = optax.chain(optax.clip(1.0), optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation())
    with pytest.raises(StrategyError, match="MultiSteps, which gathers gradients over steps"):
        row_update(Table("users", dim=DIM), gathering)


@pytest.mark.parametrize("optimizer", ["adam", None, optax.adam])
def test_what_is_no_optimizer_is_refused(optimizer: Any) -> None:
    with pytest.raises(StrategyError, match=r"the optimizer of table 'users' is .*; give an optax optimizer"):
        row_update(USERS, optimizer)


def test_a_table_brings_its_own_optimizer() -> None:
    own = optax.adagrad(0.1)
    update = row_update(Table("users", dim=DIM, optimizer=own), optax.lamb(0.1))
    assert update.optimizer is own


@pytest.mark.parametrize("dim", [1, 8])
def test_slots_are_of_a_row_and_scalars_of_all(dim: int) -> None:
    update = row_update(Table("users", dim=dim), optax.adam(0.1))
    assert update.slots == (((dim,), "float32"), ((dim,), "float32"))
    (count,) = update.scalars
    assert (count.shape, count.dtype, int(count)) == ((), np.int32, 0)


def test_rows_are_updated_as_the_optimizer_does() -> None:
    optimizer = optax.adam(0.1)
    update = row_update(USERS, optimizer)
    random = np.random.default_rng(0)
    values, first, second = update.first(random.integers(0, 2**32, (5, 2), np.uint32))
    gradients = random.standard_normal((5, DIM)).astype(np.float32)
    changes, state = optimizer.update(gradients, optimizer.init(values), values)
    found = update.update(values, first, second, np.int32(0), gradients, np.int32(0))
    expected = values + changes, state[0].mu, state[0].nu, state[0].count
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_each_row_is_drawn_by_the_initializer_with_a_key_of_its_own() -> None:
    table = Table("users", dim=DIM, initializer=jax.nn.initializers.normal(2.0), dtype="bfloat16")
    update = row_update(table, optax.sgd(0.1))
    words = np.array([[1, 2], [3, 4], [1, 2]], np.uint32)
    (values,) = update.first(words)
    assert values.dtype == jnp.bfloat16
    np.testing.assert_array_equal(values[0], values[2])
    assert (values[0] != values[1]).any()
    alone = table.initializer(jax.random.wrap_key_data(words[1]), (DIM,), jnp.bfloat16)  # type: ignore[misc]
    np.testing.assert_array_equal(values[1], alone)


def test_rows_keep_their_type() -> None:
    update = row_update(Table("users", dim=DIM, dtype="bfloat16"), optax.adagrad(0.1))
    arrays = update.first(np.ones((3, 2), np.uint32))
    values, *_ = update.update(*arrays, *update.scalars, jnp.ones((3, DIM), jnp.bfloat16), np.int32(0))
    assert values.dtype == jnp.bfloat16
