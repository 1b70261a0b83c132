"""Training under a strategy of one device, where it does not go its usual way; the results are those of plain Keras."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import stratagem as sg
from unit.keras.cases import X, Y, dense, held, told

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own
OPTIONS: dict[str, Any] = {"batch_size": 7, "shuffle": False, "verbose": 0}

Train = Callable[[Any], dict[str, Any]]


@pytest.fixture(scope="module")
def strategy() -> sg.OneDeviceStrategy:
    return sg.OneDeviceStrategy()


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


def from_torch() -> Any:
    torch = pytest.importorskip("torch")
    rows = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    return torch.utils.data.DataLoader(rows, batch_size=7)


def from_tensorflow() -> Any:
    tensorflow = pytest.importorskip("tensorflow")
    return tensorflow.data.Dataset.from_tensor_slices((X, Y)).batch(7)


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
@pytest.mark.filterwarnings(
    "ignore:Your input ran out of data:UserWarning"
)  # Keras says so of every finite one
@pytest.mark.parametrize("make", [from_generator, from_torch, from_tensorflow])
def test_batches_of_every_make(strategy: sg.OneDeviceStrategy, make: Callable[[], Any]) -> None:
    def train(model: Any) -> dict[str, Any]:
        model.compile(keras.optimizers.SGD(0.1), "mse")
        history = model.fit(make(), verbose=0, validation_data=make())
        return {**told(history), **held(model), "evaluate": model.evaluate(make(), verbose=0)}

    check(strategy, train)


def test_tensorboard_has_the_history(strategy: sg.OneDeviceStrategy, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    with strategy.scope():
        model = dense()
    model.compile("sgd", "mse")
    model.fit(X, Y, callbacks=[keras.callbacks.TensorBoard(tmp_path)], **OPTIONS)
    assert list(tmp_path.glob("train/events*"))
