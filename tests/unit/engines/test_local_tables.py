"""Training of tables: the same as of dense variables where that can be, and lazy where it cannot."""

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg
from stratagem.engines.multi_worker_engine import MultiWorkerEngine
from stratagem.engines.replicas import Replicas
from stratagem.engines.workers import Alone
from stratagem.strategies import Strategy
from stratagem.tables.table import uniform
from stratagem.waist import FunctionTrainable
from table_training import DIM, OPTIMIZERS, Trained, check_same, trained_by_row, trained_densely

STRATEGIES = [sg.OneDeviceStrategy, sg.MirroredStrategy, sg.CentralStorageStrategy]
PARAMS = {"bias": np.zeros(DIM, np.float32)}
IDS = {"ids": np.array([1, 2, 2, 2**40], np.int64)}


def plain(params: Any, batch: Any, rows: Any) -> Any:
    return jnp.mean(jnp.sum((rows["users"](batch["ids"]) + params["bias"] - 1) ** 2, axis=-1))


def stepped(loss_fn: Any, *tables: sg.Table, batch: Any = IDS, optimizer: Any = None) -> Any:
    """One step: the strategy, the state and the metrics."""
    strategy = sg.OneDeviceStrategy()
    state = strategy.init(PARAMS, optimizer or optax.sgd(0.1), tables=tables or [sg.Table("users", dim=DIM)])
    state, metrics = strategy.train_step(loss_fn)(state, batch)
    return strategy, state, metrics


# The same as a dense variable.


@pytest.fixture(scope="module", params=OPTIMIZERS)
def dense(request: pytest.FixtureRequest) -> tuple[str, Trained]:
    return request.param, trained_densely(OPTIMIZERS[request.param])


@pytest.mark.parametrize("made", STRATEGIES)
def test_rows_become_what_those_of_a_dense_variable_do(made: Any, dense: tuple[str, Trained]) -> None:
    name, expected = dense
    found = trained_by_row(made(), OPTIMIZERS[name])
    check_same(found, expected)
    assert found.losses[-20:].mean() < found.losses[:20].mean() / 2


# Lazily.


def test_adam_changes_the_rows_that_a_batch_touches_alone() -> None:
    rate, first_decay, second_decay, epsilon = 0.05, 0.9, 0.999, 1e-8
    random = np.random.default_rng(0)
    strategy = sg.OneDeviceStrategy()
    state = strategy.init({}, optax.adam(rate), tables=[sg.Table("users", dim=DIM)])
    step = strategy.train_step(
        lambda params, batch, rows: jnp.mean(jnp.sum((rows["users"](batch[0]) - batch[1]) ** 2, axis=-1))
    )
    values = strategy.table(state, "users").lookup(np.arange(30)).astype(np.float64)
    first, second = np.zeros_like(values), np.zeros_like(values)
    for count in range(1, 41):
        ids, targets = random.integers(0, 30, 6), random.standard_normal((6, DIM)).astype(np.float32)
        state, _ = step(state, (ids, targets))
        gradients = np.zeros_like(values)
        np.add.at(gradients, ids, 2 * (values[ids] - targets) / len(ids))
        touched = np.unique(ids)
        own = gradients[touched]
        first[touched] = first_decay * first[touched] + (1 - first_decay) * own
        second[touched] = second_decay * second[touched] + (1 - second_decay) * own**2
        mean = first[touched] / (1 - first_decay**count)
        spread = second[touched] / (1 - second_decay**count)
        values[touched] -= rate * mean / (np.sqrt(spread) + epsilon)
    found = strategy.table(state, "users").lookup(np.arange(30))
    np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-5)


def test_what_is_lazy_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    tables = [
        sg.Table("users", dim=2),
        sg.Table("shops", dim=2, optimizer=optax.sgd(0.1)),
        sg.Table("items", dim=3),
    ]
    strategy = sg.OneDeviceStrategy()
    with caplog.at_level(logging.INFO, "stratagem"):
        strategy.init(PARAMS, optax.adam(0.1), tables=tables)
        strategy.init(PARAMS, optax.sgd(0.1), tables=tables)
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.startswith(
        "the optimizer of table 'users', 'items' would also change rows that a batch does not touch"
    )


# Tables that are kept together.


def test_stacked_tables_become_what_they_do_apart() -> None:
    sizes = {"day": 7, "hour": 24, "country": 50}
    random = np.random.default_rng(1)
    batches = [
        {
            **{name: random.integers(0, size, (6,)) for name, size in sizes.items()},
            "target": random.standard_normal((6, DIM)).astype(np.float32),
        }
        for _ in range(12)
    ]

    def loss_fn(params: Any, batch: Any, rows: Any) -> Any:
        total = sum(rows[name](batch[name]) for name in sizes) + rows["hour"](batch["hour"] // 2)
        return jnp.mean(jnp.sum((total - batch["target"]) ** 2, axis=-1))

    def values(is_apart: bool) -> tuple[int, list[Any], list[set[int]]]:
        tables = [
            sg.Table(
                name,
                dim=DIM,
                rows=size,
                seed=size,
                initializer=(lambda *given: uniform(*given)) if is_apart else None,
            )
            for name, size in sizes.items()
        ]
        strategy = sg.OneDeviceStrategy()
        state, step = strategy.init({}, optax.adam(0.1), tables=tables), strategy.train_step(loss_fn)
        kept = state.recipe.tables
        assert kept is not None
        for batch in batches:
            state, _ = step(state, batch)
        views = [strategy.table(state, name) for name in sizes]
        trained = [{int(number) for ids, _ in view.items() for number in ids} for view in views]
        assert [len(view) for view in views] == [len(each) for each in trained]
        return (
            len(kept.stacks),
            [view.lookup(np.arange(size)) for view, size in zip(views, sizes.values(), strict=True)],
            trained,
        )

    together, apart = values(is_apart=False), values(is_apart=True)
    assert (together[0], apart[0]) == (1, 3)
    for one, other in zip(together[1], apart[1], strict=True):
        np.testing.assert_array_equal(one, other)
    assert together[2] == apart[2]


# What a loss function may be.


def test_a_loss_with_metrics_and_ids_that_are_drawn() -> None:
    def loss_fn(params: Any, batch: Any, rows: Any, rng: Any) -> Any:
        ids = jax.random.randint(rng, (2,), 0, 1_000_000)
        found = rows["users"](ids)
        return jnp.mean(found**2), {"first": ids[0], "second": ids[1], "rows": len(batch["ids"])}

    strategy = sg.OneDeviceStrategy()
    state = strategy.init(PARAMS, optax.sgd(0.1), tables=[sg.Table("users", dim=DIM)])
    step = strategy.train_step(loss_fn)
    drawn = set()
    for _ in range(3):
        state, metrics = step(state, IDS)
        assert metrics.keys() == {"loss", "first", "second", "rows"}
        drawn |= {int(metrics["first"]), int(metrics["second"])}
    assert len(drawn) == 6
    trained = {int(number) for ids, _ in strategy.table(state, "users").items() for number in ids}
    assert trained == drawn


def test_a_loss_may_leave_a_table_out_and_a_batch_may_have_plain_numbers() -> None:
    def loss_fn(params: Any, batch: Any, rows: Any) -> Any:
        return plain(params, batch, rows) * batch["weight"]

    strategy, state, metrics = stepped(
        loss_fn,
        sg.Table("users", dim=DIM),
        sg.Table("unused", dim=DIM),
        batch={**IDS, "weight": 2.0},
        optimizer=optax.adam(0.1),
    )
    assert np.isfinite(metrics["loss"])
    assert (len(strategy.table(state, "users")), len(strategy.table(state, "unused"))) == (3, 0)


@pytest.mark.parametrize("made", STRATEGIES)
def test_ids_keep_their_bits_on_their_way_through_distribute(made: Any) -> None:
    strategy: Strategy = made()
    batches = strategy.distribute([IDS])  # before init says that there are tables
    state = strategy.init(PARAMS, optax.sgd(0.1), tables=[sg.Table("users", dim=DIM)])
    step = strategy.train_step(plain)
    for batch in batches:
        state, _ = step(state, batch)
    trained = sorted(int(number) for ids, _ in strategy.table(state, "users").items() for number in ids)
    assert trained == [1, 2, 2**40]


def test_rows_are_admitted_and_expire_by_the_steps_of_training() -> None:
    strategy = sg.OneDeviceStrategy()
    table = sg.Table("users", dim=DIM, admit_after=1, expire_steps=1)
    state, step = strategy.init(PARAMS, optax.sgd(0.1), tables=[table]), strategy.train_step(plain)
    view = strategy.table(state, "users")
    lengths = []
    for number in [1, 1, 2, 2, 2]:
        state, _ = step(state, {"ids": np.array([number, number])})
        lengths.append([int(each) for ids, _ in view.items() for each in ids])
    assert lengths == [[], [1], [1], [2], [2]]


# Mistakes.


def test_a_table_that_init_was_not_given() -> None:
    with pytest.raises(
        sg.StrategyError, match=r"looks rows up in 'users', and init was given the tables \['items'\]"
    ):
        stepped(plain, sg.Table("items", dim=DIM))


def test_an_id_that_is_not_of_its_table_trains_nothing() -> None:
    strategy = sg.OneDeviceStrategy()
    state = strategy.init(PARAMS, optax.sgd(0.1), tables=[sg.Table("users", dim=DIM, rows=3)])
    step = strategy.train_step(plain)
    with pytest.raises(sg.DataError, match=rf"ids are 0 to 2; batch\['ids'\]\[3\] is {2**40}"):
        step(state, IDS)
    assert len(strategy.table(state, "users")) == 0
    state, _ = step(state, {"ids": np.array([0, 1, 2, 2])})
    assert int(state.step) == 1
    assert len(strategy.table(state, "users")) == 3


def test_a_loss_function_without_rows() -> None:
    with pytest.raises(
        sg.StrategyError, match=r"loss_fn is a function of \(params, batch\); give .*batch, rows\)"
    ):
        stepped(lambda params, batch: jnp.float32(0))


def test_a_loss_for_each_row() -> None:
    with pytest.raises(sg.StrategyError, match=r"returned an array float32\[4, 3\]; give the mean loss"):
        stepped(lambda params, batch, rows: rows["users"](batch["ids"]))


def test_tables_go_with_functions_alone() -> None:
    strategy, tables = sg.OneDeviceStrategy(), [sg.Table("users", dim=DIM)]
    trainable = FunctionTrainable(jax.tree.structure(PARAMS), lambda params, batch: jnp.float32(0))
    with pytest.raises(
        sg.StrategyError, match="init was given tables and a FunctionTrainable: give parameters as"
    ):
        strategy.init(trainable, optax.sgd(0.1), tables=tables)
    state = strategy.init(PARAMS, optax.sgd(0.1), tables=tables)
    with pytest.raises(
        sg.StrategyError, match=r"was given a FunctionTrainable, and init tables: give a function"
    ):
        strategy.train_step(trainable)(state, IDS)


def test_an_optimizer_that_mixes_rows_is_refused_by_init() -> None:
    with pytest.raises(
        sg.StrategyError, match="the optimizer of table 'users' does not treat every row by itself"
    ):
        sg.OneDeviceStrategy().init(PARAMS, optax.lamb(0.1), tables=[sg.Table("users", dim=DIM)])


def test_workers_in_step_say_where_tables_can_be_trained() -> None:
    engine = MultiWorkerEngine(Replicas.named(None), Alone())  # type: ignore[arg-type]  # no step is made with it
    wanted = (
        "cannot train tables row by row as it is used here: train them under ParameterServerStrategy with "
        "replication='between-graph', or in one process under OneDeviceStrategy, MirroredStrategy or CentralStorageStrategy"
    )
    with pytest.raises(sg.StrategyError, match=wanted):
        Strategy(engine, Alone()).init(PARAMS, optax.sgd(0.1), tables=[sg.Table("users", dim=DIM)])
