"""Typical mistakes with a Flax model under a strategy: each ends in an error that says what to do instead."""

from typing import Any

import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import stratagem as sg
from unit.flax.models import Dense, batches, loss_fn


def losses(model: Any, batch: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(model(batch[0]), batch[1])


def stepped(loss: Any) -> Any:
    strategy, trainable = sg.OneDeviceStrategy(), sg.flax.Trainable(Dense(), loss)
    return strategy.train_step(trainable)(strategy.init(trainable, optax.sgd(0.1)), batches(1)[0])


def test_a_loss_for_each_row() -> None:
    with pytest.raises(sg.StrategyError, match=r"returned an array float32\[12\]; give the mean loss"):
        stepped(losses)


def test_metrics_without_names() -> None:
    with pytest.raises(sg.StrategyError, match=r"float32\[\], an array float32\[12\]\); .* a dictionary of"):
        stepped(lambda model, batch: (losses(model, batch).mean(), losses(model, batch)))


def test_a_metric_for_each_row() -> None:
    with pytest.raises(
        sg.StrategyError, match=r"the metric 'losses': an array float32\[12\]; .*one\s+number"
    ):
        stepped(lambda model, batch: (losses(model, batch).mean(), {"losses": losses(model, batch)}))


def test_a_variable_of_the_model_is_a_metric() -> None:
    class Counting(Dense):
        def __init__(self) -> None:
            super().__init__()
            self.temperature = nnx.Variable(jnp.float32(2))

    trainable = sg.flax.Trainable(
        Counting(), lambda model, batch: (losses(model, batch).mean(), {"temperature": model.temperature})
    )
    params, state = trainable.init()
    assert float(trainable.evaluate(params, state, batches(1)[0])["temperature"][...]) == 2


def test_an_argument_that_is_not_called_as_it_should_be() -> None:
    wanted = (
        r"loss_fn is a function of \(model, batch, rngs\); give a function loss_fn\(model, batch\), or "
        r"loss_fn\(model, batch, rng\)"
    )
    with pytest.raises(sg.StrategyError, match=wanted):
        sg.flax.Trainable(Dense(), lambda model, batch, rngs: losses(model, batch).mean())


@pytest.mark.parametrize(
    ("optimizer", "got"), [("adm", "'adm'"), (None, "None"), (optax.adam, "<function adam at .*>")]
)
def test_an_optimizer_that_is_none(optimizer: Any, got: str) -> None:
    wanted = rf"the optimizer is {got}; give an optax optimizer, such as optax\.adam\(1e-3\), or one of"
    with pytest.raises(sg.StrategyError, match=wanted):
        sg.OneDeviceStrategy().init(sg.flax.Trainable(Dense(), loss_fn), optimizer)


@pytest.mark.parametrize(("given", "got"), [(loss_fn, "a function"), (Dense(), "a Dense")])
def test_a_step_of_something_else_than_the_trainable(given: Any, got: str) -> None:
    strategy = sg.OneDeviceStrategy()
    state = strategy.init(sg.flax.Trainable(Dense(), loss_fn), optax.sgd(0.1))
    step = strategy.train_step(given)
    wanted = rf"train_step was given {got}, and init a Trainable, .*strategy\.train_step\(trainable\)"
    with pytest.raises(sg.StrategyError, match=wanted):
        step(state, batches(1)[0])
