"""Training under a strategy of one device, where it does not go its usual way; the results are those of plain Keras."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import stratagem as sg
from unit.keras.beside_plain_keras import OPTIONS, both, check, check_batches
from unit.keras.cases import X, Y, dense, held, told

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own


@pytest.fixture(scope="module")
def strategy() -> sg.OneDeviceStrategy:
    return sg.OneDeviceStrategy()


def test_eagerly(strategy: sg.OneDeviceStrategy) -> None:
    def train(model: Any) -> dict[str, Any]:
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
        return {**told(model.fit(X[:7], Y[:7], **OPTIONS)), **held(model)}

    check(strategy, train)


def test_shuffled_by_the_same_seed(strategy: sg.OneDeviceStrategy) -> None:
    def train(model: Any) -> dict[str, Any]:
        model.compile(keras.optimizers.SGD(0.1), "mse")
        np.random.seed(5)
        return {**told(model.fit(X, Y, batch_size=7, epochs=2, verbose=0)), **held(model)}

    check(strategy, train)


def test_layers_that_are_frozen_between(strategy: sg.OneDeviceStrategy) -> None:
    def train(model: Any) -> dict[str, Any]:
        model.compile(keras.optimizers.SGD(0.1), "mse")
        found = told(model.fit(X, Y, **OPTIONS))
        model.layers[0].trainable = False
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
        found.update(told(model.fit(X, Y, epochs=2, **OPTIONS), "frozen"))
        return {**found, **held(model)}

    check(strategy, train)


def test_values_that_callbacks_read_and_set_between_batches(strategy: sg.OneDeviceStrategy) -> None:
    def train(model: Any) -> dict[str, Any]:
        model.compile(keras.optimizers.SGD(0.1), "mse")
        seen = []

        def halve(batch: int, logs: Any) -> None:
            model.jax_state_sync()
            seen.append([logs["loss"], model.get_weights()[0].sum()])
            model.set_weights([weight / 2 for weight in model.get_weights()])

        callback = keras.callbacks.LambdaCallback(on_train_batch_end=halve)
        return {
            **told(model.fit(X, Y, callbacks=[callback], **OPTIONS)),
            **held(model),
            "seen": np.asarray(seen),
        }

    check(strategy, train)


def test_evaluated_and_predicted_in_the_middle_of_an_epoch(strategy: sg.OneDeviceStrategy) -> None:
    def train(model: Any) -> dict[str, Any]:
        model.compile(keras.optimizers.SGD(0.1), "mse")
        seen = []

        def look(epoch: int, logs: Any) -> None:
            seen.append(model.evaluate(X, Y, batch_size=7, verbose=0))
            seen.extend(model.predict(X[:7], verbose=0).ravel())

        callback = keras.callbacks.LambdaCallback(on_epoch_end=look)
        history = model.fit(X, Y, epochs=2, callbacks=[callback], **OPTIONS)
        return {**told(history), **held(model), "seen": np.asarray(seen)}

    check(strategy, train)


def test_nan_ends_training(strategy: sg.OneDeviceStrategy) -> None:
    def train(model: Any) -> dict[str, Any]:
        model.compile(keras.optimizers.SGD(0.1), "mse")
        labels = Y.copy()
        labels[10] = np.nan
        callbacks = [keras.callbacks.TerminateOnNaN()]
        history = model.fit(X, labels, epochs=3, callbacks=callbacks, **OPTIONS)
        return {"epochs": history.epoch, "iterations": np.asarray(model.optimizer.iterations)}

    check(strategy, train)
    assert both(strategy, train)[0]["iterations"] == 2


def test_weights_are_saved_and_loaded(strategy: sg.OneDeviceStrategy, tmp_path: Path) -> None:
    with strategy.scope():
        model, other = dense(), dense()
    for each in (model, other):
        each.compile(keras.optimizers.Adam(0.1), "mse")
        each.fit(X, Y, **OPTIONS)
    model.fit(X, Y, **OPTIONS)
    model.save_weights(tmp_path / "trained.weights.h5")
    other.load_weights(tmp_path / "trained.weights.h5")
    np.testing.assert_array_equal(model.predict(X, verbose=0), other.predict(X, verbose=0))
    assert int(other.optimizer.iterations) == 6
    for name, value in held(other).items():
        np.testing.assert_array_equal(held(model)[name], value, err_msg=name)


def test_bfloat16(strategy: sg.OneDeviceStrategy) -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:

        def train(model: Any) -> dict[str, Any]:
            model.compile(keras.optimizers.SGD(0.1), "mse")
            return {**told(model.fit(X, Y, **OPTIONS)), **held(model)}

        mine, plain = both(strategy, train)
    finally:
        keras.config.set_dtype_policy("float32")
    assert sorted(mine) == sorted(plain)
    for name, value in plain.items():
        np.testing.assert_allclose(mine[name], value, atol=1e-2, err_msg=name)


def from_generator() -> Iterator[Any]:
    for start in range(0, 21, 7):
        yield X[start : start + 7], Y[start : start + 7]


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
@pytest.mark.filterwarnings(
    "ignore:Your input ran out of data:UserWarning"
)  # Keras says so of every finite one
def test_batches_of_a_generator(strategy: sg.OneDeviceStrategy) -> None:
    check_batches(strategy, from_generator)
