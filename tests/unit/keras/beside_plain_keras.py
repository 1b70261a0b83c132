"""The same training under a strategy and by plain Keras, side by side."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np

import stratagem as sg
from unit.keras.cases import dense, held, told

Train = Callable[[Any], dict[str, Any]]
OPTIONS: dict[str, Any] = {"batch_size": 7, "shuffle": False, "verbose": 0}


def both(strategy: sg.OneDeviceStrategy, train: Train) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a training comes to under a strategy, and plainly."""
    found = []
    for scope in (strategy.scope, nullcontext):
        keras.utils.set_random_seed(3)
        with scope():
            model = dense()
        found.append(train(model))
    return found[0], found[1]


def check(strategy: sg.OneDeviceStrategy, train: Train) -> None:
    mine, plain = both(strategy, train)
    assert sorted(mine) == sorted(plain)
    for name, value in plain.items():
        np.testing.assert_allclose(mine[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def check_batches(strategy: sg.OneDeviceStrategy, make: Callable[[], Any]) -> None:
    """Training, validation and evaluation with batches that `make` makes come to the same as plainly."""

    def train(model: Any) -> dict[str, Any]:
        model.compile(keras.optimizers.SGD(0.1), "mse")
        history = model.fit(make(), verbose=0, validation_data=make())
        return {**told(history), **held(model), "evaluate": model.evaluate(make(), verbose=0)}

    check(strategy, train)
