"""Typical mistakes with a strategy: each ends in an error that says what to do instead."""

import inspect
import traceback
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg
from stratagem.strategies import Strategy

BATCH = np.ones((16, 3), np.float32)


@pytest.fixture(params=[sg.OneDeviceStrategy, sg.MirroredStrategy, sg.CentralStorageStrategy])
def strategy(request: pytest.FixtureRequest) -> Strategy:
    made: Strategy = request.param()
    return made


def parameters() -> dict[str, Any]:
    return {"w": jnp.ones(3)}


def losses(params: Any, batch: Any) -> Any:
    return (batch @ params["w"]) ** 2


def stepped(strategy: Strategy, loss_fn: Any) -> Any:
    return strategy.train_step(loss_fn)(strategy.init(parameters(), optax.sgd(0.1)), BATCH)


def test_a_loss_for_each_row(strategy: Strategy) -> None:
    with pytest.raises(sg.StrategyError, match=r"returned an array float32\[16\]; give the mean loss"):
        stepped(strategy, losses)


def test_metrics_without_names(strategy: Strategy) -> None:
    with pytest.raises(sg.StrategyError, match=r"float32\[\], an array float32\[16\]\); .* a dictionary of"):
        stepped(strategy, lambda params, batch: (losses(params, batch).mean(), batch @ params["w"]))


def test_an_error_of_the_users_comes_out_as_it_is(strategy: Strategy) -> None:
    def broken_loss(params: Any, batch: Any) -> Any:
        raise TypeError("the user's own")

    with pytest.raises(TypeError) as caught:
        stepped(strategy, broken_loss)
    assert caught.value.args == ("the user's own",)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "broken_loss"


def test_the_check_is_made_while_tracing_and_not_at_every_step(strategy: Strategy) -> None:
    calls = []

    def loss_fn(params: Any, batch: Any) -> Any:
        calls.append(batch)
        return losses(params, batch).mean(), {"most": losses(params, batch).max()}

    state, step = strategy.init(parameters(), optax.sgd(0.1)), strategy.train_step(loss_fn)
    state, _ = step(state, BATCH)
    traced = len(calls)
    for _ in range(3):
        state, metrics = step(state, BATCH)
    assert metrics.keys() == {"loss", "most"}
    assert len(calls) == traced


@pytest.mark.parametrize(
    ("optimizer", "got"),
    [("adm", "'adm'"), (None, "None"), (0.1, r"0\.1"), (optax.adam, "<function adam at .*>")],
)
def test_an_optimizer_that_is_none(optimizer: Any, got: str) -> None:
    wanted = rf"want an optax optimizer, not {got}; give one, such as optax\.adam\(1e-3\)"
    with pytest.raises(sg.StrategyError, match=wanted):
        sg.OneDeviceStrategy().init(parameters(), optimizer)


def test_a_loss_that_is_no_function() -> None:
    with pytest.raises(sg.StrategyError, match=r"loss_fn is 0\.5; give a function loss_fn\(params, batch\)"):
        sg.OneDeviceStrategy().train_step(0.5)  # type: ignore[arg-type]


def test_an_argument_that_is_not_called_as_it_should_be(strategy: Strategy) -> None:
    wanted = (
        r"loss_fn is a function of \(params, batch, rngs\); give a function .* loss_fn\(params, batch, rng\)"
    )
    with pytest.raises(sg.StrategyError, match=wanted):
        stepped(strategy, lambda params, batch, rngs: losses(params, batch).mean())


def generator() -> Iterator[Any]:
    yield BATCH


NO_BATCHES = [
    (5, "an int"),
    (None, "None"),
    (generator, "a function"),
    ({"image": BATCH}, "a dict"),
    ("train.npz", "a str"),
]
WANTED = r"; give an iterable of batches, such as a list .*one batch alone is \[batch\]"


@pytest.mark.parametrize(("batches", "got"), NO_BATCHES)
def test_batches_that_are_none(strategy: Strategy, batches: Any, got: str) -> None:
    with pytest.raises(sg.DataError, match=f"^distribute was given {got}{WANTED}"):
        strategy.distribute(batches)


@pytest.mark.parametrize(("batches", "got"), NO_BATCHES)
def test_a_function_that_makes_none(batches: Any, got: str) -> None:
    with pytest.raises(sg.DataError, match=f"distribute_from_function returned {got}{WANTED}"):
        sg.OneDeviceStrategy().distribute_from_function(lambda context: batches)


def test_batches_in_place_of_a_function() -> None:
    with pytest.raises(sg.StrategyError, match=r"was given a list; .*fn\(context\).* to distribute$"):
        sg.OneDeviceStrategy().distribute_from_function([BATCH])  # type: ignore[arg-type]


class Indexed:
    """A data set that knows its batches by number alone."""

    def __getitem__(self, number: int) -> Any:
        if number > 1:
            raise IndexError(number)
        return BATCH


@pytest.mark.parametrize("batches", [[BATCH, BATCH], (BATCH, BATCH), Indexed(), np.stack([BATCH, BATCH])])
def test_whatever_python_iterates_over_is_taken(strategy: Strategy, batches: Any) -> None:
    assert [each.shape for each in strategy.distribute(batches)] == [(16, 3), (16, 3)]


def test_batches_are_not_begun_before_they_are_wanted() -> None:
    begun = []

    def made() -> Iterator[Any]:
        begun.append(True)
        yield BATCH

    distributed = sg.OneDeviceStrategy().distribute(made())
    assert not begun
    assert len(list(distributed)) == len(begun) == 1


# What is otherwise in TensorFlow.


@pytest.mark.parametrize(
    ("made", "keywords", "advice"),
    [
        (sg.ParameterServerStrategy, {"num_gpus_per_worker": 2}, "here give devices_per_worker"),
        (sg.ParameterServerStrategy, {"variable_partitioner": None}, "here give partitioner"),
        (sg.ParameterServerStrategy, {"cluster_resolver": None}, r"here give cluster=sg\.ClusterSpec"),
        (sg.MultiWorkerMirroredStrategy, {"communication_options": None}, "here give communication='auto'"),
        (sg.MirroredStrategy, {"cross_device_ops": None}, "here give nothing: XLA chooses"),
        (sg.TPUStrategy, {"tpu_cluster_resolver": None}, "here give nothing: JAX finds"),
        (
            sg.RunConfig,
            {"num_gpus_per_worker": 2},
            "here give devices_per_worker, which goes to the strategy",
        ),
        (sg.RunConfig, {"tf_random_seed": 1}, "here give seed"),
    ],
)
def test_an_argument_under_its_name_in_tensorflow(made: Any, keywords: Any, advice: str) -> None:
    (name,) = keywords
    with pytest.raises(sg.StrategyError, match=f"{made.__name__} has no {name}, .*; {advice}"):
        made(**keywords)


def test_an_argument_that_nobody_knows_is_pythons_to_refuse() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'devises'"):
        sg.MirroredStrategy(devises=["/cpu:0"])  # type: ignore[call-arg]


def test_the_names_of_arguments_are_found_by_tools() -> None:
    assert list(inspect.signature(sg.MirroredStrategy).parameters) == ["devices", "shard_state"]
    assert "train_distribute" in inspect.signature(sg.RunConfig).parameters


def test_the_communication_may_come_first() -> None:
    assert sg.MultiWorkerMirroredStrategy("ring").num_replicas_in_sync >= 1
    with pytest.raises(sg.StrategyError, match="'nccl' needs GPUs, and this machine shows none"):
        sg.MultiWorkerMirroredStrategy("nccl")
    with pytest.raises(sg.StrategyError, match=r"cluster is 'ncl' and .*, as in communication='ring'"):
        sg.MultiWorkerMirroredStrategy("ncl")  # type: ignore[arg-type]
    with pytest.raises(sg.StrategyError, match="cluster is 'shm' and communication is 'ring'"):
        sg.MultiWorkerMirroredStrategy("shm", "ring")


def test_an_optimizer_with_random_numbers_for_a_table(strategy: Strategy) -> None:
    noisy = optax.chain(optax.add_noise(0.01, 0.55, 0), optax.sgd(0.1))
    with pytest.raises(
        sg.StrategyError, match=r"'users' draws random numbers, .* give the table another one"
    ):
        strategy.init(parameters(), noisy, tables=[sg.Table("users", 4)])
