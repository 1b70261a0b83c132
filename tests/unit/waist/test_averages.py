"""Averages: of gradients over towers, of parameters over time."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.errors import StrategyError
from stratagem.waist import ExponentialMovingAverage, average_gradients


def test_pytrees() -> None:
    mean = average_gradients([{"w": jnp.ones(2), "b": 1.0}, {"w": 3 * jnp.ones(2), "b": 2.0}])
    np.testing.assert_array_equal(mean["w"], [2, 2])
    assert mean["b"] == 1.5


def test_pairs_keep_the_first_towers_variables() -> None:
    w, b = np.zeros(2), np.zeros(1)
    mean = average_gradients([[(1.0, w), (None, b)], [(3.0, w), (4.0, b)]])
    assert mean == [(2.0, w), (4.0, b)]
    assert mean[0][1] is w


def test_layers_that_look_like_pairs_are_averaged_in_both() -> None:
    one, two = [(jnp.ones(2), jnp.zeros(2))], [(jnp.ones(2), 2 * jnp.ones(2))]
    ((weight, bias),) = average_gradients([one, two])
    np.testing.assert_array_equal(weight, [1, 1])
    np.testing.assert_array_equal(bias, [1, 1])


def test_none_everywhere_stays_none() -> None:
    assert average_gradients([{"w": None}, {"w": None}]) == {"w": None}


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


def test_pairs_in_iterators_and_variables_known_by_name() -> None:
    variables = [Named("w"), Named("w")]
    ((gradient, variable),) = average_gradients(
        zip([gradient], [variable], strict=True)
        for gradient, variable in zip([1.0, 3.0], variables, strict=True)
    )
    assert gradient == 2.0
    assert variable is variables[0]


@pytest.mark.parametrize(
    ("towers", "message"),
    [
        ([], "no tower"),
        ({"w": 1.0}, "got one dict; give a list with the gradients of each tower"),
        (3, "got one int"),
        ([{"w": 1.0}, {"v": 1.0}], "tower 1 has another structure"),
        (
            [[(1.0, "w"), (1.0, "b")], [(3.0, "b"), (3.0, "w")]],
            "tower 1 has another variable at place 0 than tower 0: b instead of w. Give all towers the same",
        ),
        (
            [[(1.0, Named("w"))], [(3.0, Named("b"))]],
            "another variable at place 0 than tower 0: b instead of w",
        ),
        ([{"w": "abc"}], r"tower 0 has 'abc' as the gradient of \['w'\]; give an array, a number or None"),
        ([[("abc", "w")]], "tower 0 has 'abc' as the gradient of w"),
        (
            [{"w": None}, {"w": np.ones(2)}, {"w": np.ones(1)}],
            r"tower 2 has another shape of the gradient of \['w'\] than tower 1: \(1,\) instead of \(2,\)",
        ),
        ([[(np.ones(2), "w")], [(np.ones(3), "w")]], r"gradient of w than tower 0: \(3,\) instead of \(2,\)"),
    ],
)
def test_what_cannot_be_averaged(towers: Any, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        average_gradients(towers)


def test_moving_average_is_tensorflows() -> None:
    ema = ExponentialMovingAverage(0.9)
    shadow = ema.init({"w": np.float32(0)})
    shadow = ema.update(shadow, {"w": np.float32(10)})
    np.testing.assert_allclose(shadow["w"], 1.0, rtol=1e-6)
    shadow = ema.update(shadow, {"w": np.float32(10)}, num_updates=8)  # decay (1 + 8) / (10 + 8) = 0.5
    np.testing.assert_allclose(shadow["w"], 5.5, rtol=1e-6)
    shadow = ema.update(shadow, {"w": np.float32(5.5)}, num_updates=10**6)
    np.testing.assert_allclose(shadow["w"], 5.5, rtol=1e-6)


def test_moving_average_needs_a_decay() -> None:
    with pytest.raises(StrategyError, match=r"between 0 and 1, not 1\.5"):
        ExponentialMovingAverage(1.5)
