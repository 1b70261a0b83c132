"""What a loss function may return, and what it is told if it returns something else."""

from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.errors import StrategyError
from stratagem.waist import FunctionTrainable
from stratagem.waist.user_functions import checked_loss, describe

PARAMS = [jnp.ones(3)]
BATCH = np.ones((16, 3), np.float32)


def traced(loss_fn: Any) -> Any:
    """The loss, the metrics and the gradients, as a strategy has them: compiled."""
    trainable = FunctionTrainable(jax.tree.structure({"w": 0}), loss_fn)
    (loss, _, metrics), grads = jax.jit(trainable.loss_and_grad)(PARAMS, [], BATCH, jax.random.key(0))
    return loss, metrics, grads


def losses(params: Any, batch: Any) -> Any:
    return (batch @ params["w"]) ** 2


@pytest.mark.parametrize(
    ("of", "got"),
    [
        (lambda each: each, r"returned an array float32\[16\]; "),
        (lambda each: each.mean(keepdims=True), r"returned an array float32\[1\]; "),
        (lambda each: each.mean().astype(int), r"returned an array int32\[\]; "),
        (lambda each: (each.mean(), each), r"returned \(an array float32\[\], an array float32\[16\]\); "),
        (
            lambda each: (each.mean(), each.max()),
            r"returned \(an array float32\[\], an array float32\[\]\); ",
        ),
        (lambda each: (each, {}), r"returned \(an array float32\[16\], a dict\); "),
        (lambda each: (each.mean(), {}, {}), r"returned \(an array float32\[\], a dict, a dict\); "),
        (lambda each: (each.mean(), None), r"returned \(an array float32\[\], None\); "),
        (lambda each: [each.mean(), {}], r"returned a list; "),
        (lambda each: {"loss": each.mean()}, r"returned a dict; "),
        (lambda each: None, r"returned None; "),
        (lambda each: 1, r"returned an int; "),
    ],
)
def test_what_is_no_loss_is_refused(of: Any, got: str) -> None:
    wanted = (
        r"^the loss function " + got + r"give the mean loss over the rows.*jnp\.mean\(losses\).*dictionary"
    )
    with pytest.raises(StrategyError, match=wanted):
        traced(lambda params, batch: of(losses(params, batch)))


@pytest.mark.parametrize(
    ("metrics", "got"),
    [
        ({"accuracy": jnp.ones(16)}, r"'accuracy': an array float32\[16\]"),
        ({"fine": 1.0, "sum": {"nested": 1.0}}, r"'sum': a dict"),
        ({"name": "adam"}, r"'name': a str"),
        ({"wave": jnp.complex64(1)}, r"'wave': an array complex64\[\]"),
        ({"key": jax.random.key(0)}, r"'key': an array key<fry>\[\]"),
        ({0: jnp.float32(1)}, r"0: an array float32\[\]"),
    ],
)
def test_what_is_no_metric_is_refused(metrics: Any, got: str) -> None:
    wanted = rf"^the loss function returned the metric {got}; give each metric a text .*one number.*jnp\.mean"
    with pytest.raises(StrategyError, match=wanted):
        traced(lambda params, batch: (losses(params, batch).mean(), metrics))


def test_a_loss_alone_is_taken() -> None:
    loss, metrics, (grad,) = traced(lambda params, batch: losses(params, batch).mean())
    assert (float(loss), metrics) == (9, {})
    np.testing.assert_array_equal(grad, [6, 6, 6])


def test_metrics_of_every_kind_of_number_are_taken() -> None:
    given = {
        "array": jnp.bfloat16(2),
        "numpy": np.float32(3),
        "zero_d": np.array(4),
        "float": 0.5,
        "int": 6,
        "bool": True,
    }
    _, metrics, _ = traced(lambda params, batch: (losses(params, batch).mean(), MappingProxyType(given)))
    assert {name: float(each) for name, each in metrics.items()} == {
        name: float(each) for name, each in given.items()
    }


@pytest.mark.parametrize("loss", [0.5, np.float32(0.5), np.float64(0.5), np.array(0.5)])
def test_a_loss_need_not_be_of_jax(loss: Any) -> None:
    assert float(traced(lambda params, batch: loss)[0]) == 0.5


def test_an_evaluation_is_checked_too() -> None:
    trainable = FunctionTrainable(jax.tree.structure({"w": 0}), losses)
    with pytest.raises(StrategyError, match=r"returned an array float32\[16\]"):
        trainable.evaluate(PARAMS, [], BATCH)


def test_a_front_may_call_the_function_as_its_users_do() -> None:
    with pytest.raises(StrategyError, match=r"^EstimatorSpec\.loss returned None"):
        checked_loss(None, "EstimatorSpec.loss")


def test_values_are_told_without_what_is_in_them() -> None:
    assert describe((np.zeros((2, 3)), [1], 5, None)) == "(an array float64[2, 3], a list, an int, None)"
