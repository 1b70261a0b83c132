"""Clones: whose losses, gradients, updates and summaries count, and how; all on one device."""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem.classic.deploy
from stratagem.classic.deploy import (
    CloneScope,
    DeploymentConfig,
    create_clones,
    deploy,
    gather_clone_loss,
    optimize_clones,
)
from stratagem.errors import DataError, StrategyError, VariableMismatch
from unit.test_public import declared

Batch = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
TRUE = np.array([1.0, -2.0, 3.0], np.float32)


def on_cpu(num_clones: int) -> DeploymentConfig:
    return DeploymentConfig(num_clones=num_clones, clone_on_cpu=True)


def batches(rows: int, seed: int = 0) -> Iterator[Batch]:
    random = np.random.default_rng(seed)
    while True:
        x = random.standard_normal((rows, 3)).astype(np.float32)
        yield x, x @ TRUE + 0.5


def regression(scope: CloneScope, batch: Batch) -> Any:
    x, y = batch
    predicted = x @ scope.variable("w", (3,)) + scope.variable("b", ())
    scope.add_loss(((predicted - y) ** 2).mean())
    return predicted


def test_the_lazy_list_agrees() -> None:
    assert declared(stratagem.classic.deploy) == stratagem.classic.deploy._HOMES
    for name in dir(stratagem.classic.deploy):
        assert getattr(stratagem.classic.deploy, name).__doc__, name


# First values.


def test_a_network_of_two_layers_learns_from_its_default_values() -> None:
    def network(scope: CloneScope, batch: Batch) -> Any:
        x, _ = batch
        hidden = jax.nn.relu(x @ scope.variable("first", (3, 16)) + scope.variable("bias", (16,)))
        predicted = (hidden @ scope.variable("second", (16, 1)))[:, 0]
        scope.add_loss(((predicted - jnp.abs(x).sum(axis=1)) ** 2).mean())
        return predicted

    model = deploy(on_cpu(1), network, [batches(32)], optimizer=optax.adam(1e-2))
    assert model.train_op is not None
    losses = [float(model.train_op()) for _ in range(150)]
    assert np.mean(losses[-10:]) < 0.2 * losses[0]


def test_first_values_depend_on_seed_name_and_kind() -> None:
    def values(*names: str, seed: int = 0) -> dict[str, Any]:
        def model_fn(scope: CloneScope, batch: Batch) -> Any:
            weights = {name: scope.variable(name, (4, 5)) for name in names}
            scope.variable("bias", (5,))
            scope.variable("statistics", (4, 5), trainable=False)
            scope.add_loss(sum(weight.sum() for weight in weights.values()))

        clones = create_clones(on_cpu(1), model_fn, [batches(2)], seed=seed)
        return {name: variable.read() for name, variable in clones[0].variables.items()}

    found = values("a", "b")
    bound = np.sqrt(6 / (4 + 5))
    assert 0.5 * bound < np.abs(found["a"]).max() <= bound
    assert not found["bias"].any() and not found["statistics"].any()
    assert not np.array_equal(found["a"], found["b"])
    np.testing.assert_array_equal(values("b", "c")["b"], found["b"])
    assert not np.array_equal(values("a", seed=1)["a"], found["a"])


# One clone and several.


def test_clones_share_variables_and_draw_their_own_batches() -> None:
    clones = create_clones(on_cpu(2), regression, [batches(4)])
    assert [(clone.scope, clone.device) for clone in clones] == [
        ("clone_0", "/device:CPU:0"),
        ("clone_1", "/device:CPU:0"),
    ]
    assert clones[0].variables is clones[1].variables
    assert list(clones[0].variables) == ["w", "b"]
    assert clones[0].variables["w"].device.endswith("/device:CPU:0")
    assert (clones[1].outputs.shape, clones[1].outputs.dtype) == ((4,), np.float32)
    clones[0].variables["w"].assign(TRUE)
    draws = batches(4)
    for clone in (clones[0], clones[1], clones[0]):  # making the clones used up no batch
        np.testing.assert_allclose(clone.run(), next(draws)[0] @ TRUE, rtol=1e-5)


def test_the_same_as_one_device_on_the_joined_batch() -> None:
    model = deploy(on_cpu(2), regression, [batches(4)], optimizer=optax.adam(0.1))
    assert model.train_op is not None
    params = {"w": jnp.zeros(3), "b": jnp.zeros(())}
    optimizer = optax.adam(0.1)
    state, draws = optimizer.init(params), batches(4)

    @jax.jit
    @jax.value_and_grad
    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        return ((x @ params["w"] + params["b"] - y) ** 2).mean()

    for _ in range(10):
        x, y = (np.concatenate(parts) for parts in zip(next(draws), next(draws), strict=True))
        loss, grads = loss_fn(params, x, y)
        changes, state = optimizer.update(grads, state)
        params = optax.apply_updates(params, changes)
        np.testing.assert_allclose(model.train_op(), loss, rtol=1e-5)
    variables = model.clones[0].variables
    np.testing.assert_allclose(variables["w"].read(), params["w"], rtol=1e-5)
    np.testing.assert_allclose(variables["b"].read(), params["b"], rtol=1e-5)
    assert variables["global_step"].read() == 10
    assert variables["optimizer/0/count"].read() == 10


def test_it_learns() -> None:
    model = deploy(on_cpu(3), regression, kwargs={"batch": batches(8)}, optimizer=optax.sgd(0.1))
    assert model.train_op is not None and model.total_loss is not None
    first = float(model.total_loss())
    for _ in range(100):
        model.train_op()
    assert model.total_loss() < 1e-6 < first
    np.testing.assert_allclose(model.clones[0].variables["w"].read(), TRUE, atol=1e-3)


# Losses.


def constant_losses(scope: CloneScope) -> None:
    w = scope.variable("w", (2,), initializer=jax.nn.initializers.ones, regularizer=lambda w: 5 * w.sum())
    scope.add_loss(2 * w.sum() * (scope.index + 1))
    scope.add_loss(1.0)


def test_clone_losses_are_divided_and_regularisation_counts_once() -> None:
    clones = create_clones(on_cpu(2), constant_losses)
    total, ((gradient, variable),) = optimize_clones(clones)
    assert total == (4 + 1) / 2 + (8 + 1) / 2 + 10
    np.testing.assert_array_equal(gradient, [2 / 2 + 4 / 2 + 5] * 2)
    assert variable is clones[0].variables["w"]


def test_regularisation_may_be_left_out_or_be_another() -> None:
    clones = create_clones(on_cpu(2), constant_losses)
    total, ((gradient, _),) = optimize_clones(clones, optax.sgd(1), [])
    assert total == (4 + 1) / 2 + (8 + 1) / 2
    np.testing.assert_array_equal(gradient, [3, 3])
    total, ((gradient, _),) = optimize_clones(clones, None, [lambda v: v["w"][0], lambda v: v["w"][0]])
    assert total == (4 + 1) / 2 + (8 + 1) / 2 + 2
    np.testing.assert_array_equal(gradient, [5, 3])


def test_the_share_of_one_clone() -> None:
    first, second = create_clones(on_cpu(2), constant_losses)
    assert gather_clone_loss(first, 2, first.variables.regularization_losses) == 5 / 2 + 10
    assert gather_clone_loss(second, 2, None) == 9 / 2
    assert gather_clone_loss(second, 1, []) == 9
    (silent,) = create_clones(on_cpu(1), lambda scope: scope.variable("w", (2,)))
    assert gather_clone_loss(silent, 1, None) is None
    assert gather_clone_loss(silent, 1, [lambda variables: variables["w"].sum() + 1]) == 1


def test_several_regularizers_add_up_even_without_other_losses() -> None:
    def model_fn(scope: CloneScope) -> None:
        for name in ("v", "w"):
            scope.variable(name, (), initializer=np.float32(3), regularizer=lambda value: value**2)

    model = deploy(on_cpu(2), model_fn, optimizer=optax.sgd(0.5))
    assert model.train_op is not None
    assert model.train_op() == 18
    assert model.train_op() == 0


# Gradients that are not there.


def test_gradients_that_no_clone_has_are_left_out_and_what_some_have_is_summed() -> None:
    def model_fn(scope: CloneScope) -> None:
        everywhere, once, nowhere, stopped = (
            scope.variable(name, (), initializer=np.float32(2))
            for name in ("everywhere", "once", "nowhere", "stopped")
        )
        scope.add_loss(everywhere * jax.lax.stop_gradient(stopped) + 0.0 * nowhere.size)
        if scope.index == 1:
            scope.add_loss(once**2)

    clones = create_clones(on_cpu(2), model_fn)
    _, pairs = optimize_clones(clones)
    assert {variable.name: float(gradient) for gradient, variable in pairs} == {"everywhere": 2, "once": 2}
    _, pairs = optimize_clones(clones, var_list=["once"])
    assert [variable.name for _, variable in pairs] == ["once"]
    _, pairs = optimize_clones(clones, var_list=[clones[0].variables["everywhere"]])
    assert [variable.name for _, variable in pairs] == ["everywhere"]

    # Weight decay would change what has a gradient of zero, but not what has none.
    model = deploy(on_cpu(2), model_fn, optimizer=optax.adamw(0.1, weight_decay=0.5))
    assert model.train_op is not None
    model.train_op()
    variables = model.clones[0].variables
    assert (variables["nowhere"].read(), variables["stopped"].read()) == (2, 2)
    assert variables["once"].read() < 2
    assert not any("nowhere" in name for name in variables if name.startswith("optimizer/"))


def test_nothing_to_train() -> None:
    def model_fn(scope: CloneScope) -> None:
        scope.add_loss(scope.variable("w", (), initializer=np.float32(2), trainable=False))

    model = deploy(on_cpu(1), model_fn, optimizer=optax.sgd(0.1))
    assert model.train_op is None
    assert model.total_loss is not None and model.total_loss() == 2


# Updates and summaries.


def with_moving_mean(scope: CloneScope, batch: Batch) -> None:
    mean = scope.variable("mean", (3,), trainable=False)
    scope.add_update("mean", 0.1 * mean + 0.9 * batch[0].mean(axis=0))
    scope.add_summary("rows", batch[0])
    regression(scope, batch)


def test_updates_come_from_the_first_clone_alone_and_only_with_training() -> None:
    model = deploy(on_cpu(2), with_moving_mean, [batches(4)], optimizer=optax.sgd(0.1))
    assert model.train_op is not None and model.total_loss is not None
    draws = batches(4)
    model.total_loss()
    next(draws), next(draws)
    mean = np.zeros(3, np.float32)
    np.testing.assert_array_equal(model.clones[0].variables["mean"].read(), mean)
    for _ in range(5):
        model.train_op()
        mean = 0.1 * mean + 0.9 * next(draws)[0].mean(axis=0)
        next(draws)  # the second clone's
    np.testing.assert_allclose(model.clones[0].variables["mean"].read(), mean, rtol=1e-5)


def test_a_first_clone_without_a_loss_still_brings_its_updates() -> None:
    def model_fn(scope: CloneScope) -> None:
        w = scope.variable("w", ())
        count = scope.variable("count", (), dtype=np.int32, trainable=False)
        scope.add_update("count", count + 1 + 10 * scope.index)
        if scope.index > 0:
            scope.add_loss((w - 1) ** 2)

    model = deploy(on_cpu(2), model_fn, optimizer=optax.sgd(0.1))
    assert model.train_op is not None
    assert [float(model.train_op()) for _ in range(2)] == pytest.approx([0.5, 0.405])
    assert model.clones[0].variables["count"].read() == 2


def test_summaries_are_the_first_clones_and_the_totals() -> None:
    model = deploy(
        on_cpu(2), with_moving_mean, [batches(4)], optimizer=optax.sgd(0.1), summarize_gradients=True
    )
    shown = model.summary_op()
    assert set(shown) == {
        "clone_0/rows",
        "clone_0/clone_loss",
        "total_loss",
        *(f"{name}:{what}" for name in ("w", "b") for what in ("gradient", "gradient_norm")),
    }
    np.testing.assert_array_equal(shown["clone_0/rows"], next(batches(4))[0])
    np.testing.assert_allclose(
        shown["w:gradient_norm"], np.linalg.norm(np.asarray(shown["w:gradient"])), rtol=1e-6
    )
    assert shown["total_loss"] > shown["clone_0/clone_loss"] > 0


def test_evaluation_has_a_loss_and_summaries_but_no_training() -> None:
    def model_fn(scope: CloneScope) -> Any:
        constant_losses(scope)
        scope.add_summary("three", 3)

    model = deploy(on_cpu(1), model_fn, summarize_gradients=True)
    assert model.train_op is None
    assert model.total_loss is not None and model.total_loss() == 5 + 10
    assert {name: float(value) for name, value in model.summary_op().items()} == {
        "three": 3,
        "clone_loss": 5,
        "regularization_loss": 10,
        "total_loss": 15,
    }
    assert "global_step" not in model.clones[0].variables

    silent = deploy(on_cpu(1), lambda scope: scope.add_summary("one", 1))
    assert silent.total_loss is None
    assert silent.summary_op() == {"one": 1}


# Variables and inputs.


def test_first_values() -> None:
    def model_fn(scope: CloneScope) -> None:
        normal = jax.nn.initializers.normal()
        scope.variable("one", (4,), initializer=normal)
        scope.variable("two", (4,), initializer=normal)
        scope.variable("array", initializer=np.arange(3, dtype=np.int32), trainable=False)
        scope.variable("filled", (2, 2), initializer=7.0)
        scope.variable("half", (2,), dtype=jnp.bfloat16)

    def first_values(seed: int) -> dict[str, Any]:
        variables = create_clones(on_cpu(1), model_fn, seed=seed)[0].variables
        return {name: variable.read() for name, variable in variables.items()}

    values, again, other = first_values(0), first_values(0), first_values(1)
    np.testing.assert_array_equal(values["one"], again["one"])
    assert not np.array_equal(values["one"], values["two"])
    assert not np.array_equal(values["one"], other["one"])
    np.testing.assert_array_equal(values["array"], [0, 1, 2])
    np.testing.assert_array_equal(values["filled"], np.full((2, 2), 7))
    assert str(values["half"].dtype) == "bfloat16"


def test_local_variables_are_like_remote_ones() -> None:
    w = create_clones(on_cpu(1), regression, [batches(2)])[0].variables["w"]
    assert (w.shape, w.dtype) == ((3,), "float32")
    w.assign([1, 2, 3])
    w.assign_add([1, 1, 1])
    np.testing.assert_array_equal(w.read(), [2, 3, 4])
    assert w.dtype == "float32"
    with pytest.raises(VariableMismatch, match=r"shape \(3,\), but the value for it has \(2,\)"):
        w.assign([1, 2])


def test_arrays_are_traced_and_the_rest_is_part_of_the_program() -> None:
    calls = itertools.count()

    def model_fn(scope: CloneScope, rows: Any, count: int, options: dict[str, Any], label: str = "") -> Any:
        next(calls)
        assert isinstance(rows, jax.core.Tracer) and isinstance(options["scale"], jax.core.Tracer)
        assert (count, options["name"], options["nothing"], label) == (2, "sum", None, "label")
        return rows.reshape(count, -1).sum() * options["scale"]

    options = {"scale": np.float32(2), "name": "sum", "nothing": None}
    (clone,) = create_clones(
        on_cpu(1), model_fn, [iter(np.ones((5, 4), np.float32)), 2, options], {"label": "label"}
    )
    traced = next(calls)
    assert [float(clone.run()) for _ in range(5)] == [8] * 5
    assert next(calls) == traced + 2  # one trace for all runs


def test_inputs_that_run_out() -> None:
    model = deploy(on_cpu(2), regression, [itertools.islice(batches(4), 5)], optimizer=optax.sgd(0.1))
    assert model.train_op is not None
    for _ in range(2):
        model.train_op()
    with pytest.raises(DataError, match=r"ran out after 5 batch\(es\)"):
        model.train_op()


class Dataset:
    def __iter__(self) -> Iterator[Batch]:
        return batches(4)


@pytest.mark.parametrize("given", [[next(batches(4)) for _ in range(3)], Dataset()])
def test_batches_that_are_no_iterator(given: Any) -> None:
    with pytest.raises(
        DataError, match=r"argument 0 in args whole, a \w+: if that has batches.* give iter\("
    ):
        create_clones(on_cpu(1), regression, [given])
    with pytest.raises(DataError, match="argument 'batch' whole"):
        create_clones(on_cpu(1), regression, kwargs={"batch": given})
    create_clones(on_cpu(1), regression, [iter(given)])


def test_errors_of_the_model_function_are_its_own() -> None:
    def model_fn(scope: CloneScope, sizes: list[int], weights: list[Any]) -> None:
        raise VariableMismatch("what it says") if weights else ValueError("what it says")

    for weights, kind in (([], ValueError), ([np.ones(2)], VariableMismatch)):
        with pytest.raises(kind, match=r"^what it says"):
            create_clones(on_cpu(1), model_fn, [[8, 4], weights])


def declares(*args: Any, **kwargs: Any) -> Any:
    return lambda scope: scope.variable(*args, **kwargs)


@pytest.mark.parametrize(
    ("model_fn", "message"),
    [
        (lambda scope: [scope.variable("w", ()) for _ in range(2)], "has a variable 'w' already"),
        (declares("w"), "'w' has no shape"),
        (declares(""), "name is text such as 'w', not ''"),
        (declares("n", (), dtype=np.int32), "'n' is int32, which cannot be trained"),
        (declares("w", (2,), initializer=np.zeros(3)), r"shape \(2,\), but its first value has \(3,\)"),
        (lambda scope: scope.variable("w", initializer=jnp.zeros(3)), "which JAX traces"),
        (lambda scope: scope.add_loss(jnp.zeros(3)), r"shape \(3,\): take its mean"),
        (lambda scope: scope.add_update("mean", 1.0), "got 'mean'; the variables so far are none"),
        (
            lambda scope: scope.add_update("w", scope.variable("w", ()) + 1),
            "add_update got 'w', which the optimizer trains, .*trainable=False",
        ),
        (
            lambda scope: scope.variable("one" if scope.index == 0 else "two", ()),
            "clone 1 asks for variable 'two'",
        ),
    ],
)
def test_model_functions_that_cannot_be_meant(model_fn: Any, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        create_clones(on_cpu(2), model_fn)


def test_updates_of_another_shape() -> None:
    def model_fn(scope: CloneScope) -> None:
        scope.add_update("mean", scope.variable("mean", (3,), trainable=False)[:2])

    with pytest.raises(VariableMismatch, match=r"has the shape \(2,\), the variable \(3,\)"):
        create_clones(on_cpu(1), model_fn)


def test_what_cannot_be_deployed() -> None:
    with pytest.raises(StrategyError, match="num_clones is 0"):
        deploy(DeploymentConfig(num_clones=0), constant_losses)
    with pytest.raises(StrategyError, match="no clones to optimize"):
        optimize_clones([])
    with pytest.raises(StrategyError, match="nothing to optimize"):
        deploy(on_cpu(1), declares("w", ()), optimizer=optax.sgd(0.1))
    with pytest.raises(StrategyError, match="no clone has a loss"):
        optimize_clones(create_clones(on_cpu(1), declares("w", ())))
    with pytest.raises(StrategyError, match="var_list has v; the trained variables are w"):
        optimize_clones(create_clones(on_cpu(1), constant_losses), var_list=["v"])
    with pytest.raises(StrategyError, match="there is a variable 'global_step' already"):
        deploy(
            on_cpu(1),
            lambda scope: scope.add_loss(scope.variable("global_step", ())),
            optimizer=optax.sgd(0.1),
        )
    with pytest.raises(StrategyError, match="give session="):
        deploy(DeploymentConfig(num_ps_tasks=1, clone_on_cpu=True), constant_losses)
