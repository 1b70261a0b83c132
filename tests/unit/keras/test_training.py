"""Training under a strategy of one device, where it does not go its usual way; the results are those of plain Keras."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.experimental.sparse import BCOO

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


def from_sparse() -> Iterator[Any]:
    for x, y in from_generator():
        yield BCOO.fromdense(jnp.where(x > 0, x, 0)), y


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
@pytest.mark.filterwarnings(
    "ignore:Your input ran out of data:UserWarning"
)  # Keras says so of every finite one
@pytest.mark.parametrize("make", [from_generator, from_sparse])
def test_batches_of_generators(strategy: sg.OneDeviceStrategy, make: Callable[[], Any]) -> None:
    check_batches(strategy, make)


# Pipelines.


def unbuilt() -> Any:
    model = keras.Sequential([keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


@pytest.mark.parametrize("source", ["arrays", "stream"])
def test_a_pipeline_is_as_good_as_its_rows(strategy: sg.OneDeviceStrategy, source: str) -> None:
    def pipeline() -> Any:
        return sg.data.pipeline((X, Y) if source == "arrays" else Rows(), 7)

    found = []
    for scope in (strategy.scope, nullcontext):
        keras.utils.set_random_seed(3)
        with scope():
            model = unbuilt()
        is_plain = scope is nullcontext
        data = (X, Y) if is_plain else (pipeline(), None)
        options = OPTIONS if is_plain else {"verbose": 0}
        validation = data if is_plain else pipeline()
        history = model.fit(*data, epochs=3, validation_data=validation, **options)
        evaluated = model.evaluate(*data, verbose=0)
        found.append(
            {
                **told(history),
                **held(model),
                "evaluate": evaluated,
                "predict": model.predict(data[0], verbose=0),
            }
        )
    mine, plain = found
    for name, value in plain.items():
        np.testing.assert_allclose(mine[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


class Rows:
    """Rows one after the other, which have no numbers."""

    def __iter__(self) -> Iterator[Any]:
        yield from zip(X, Y, strict=True)


def test_an_epoch_is_a_pass_shuffled_anew_and_none_is_left_out(strategy: sg.OneDeviceStrategy) -> None:
    numbers = np.arange(21, dtype=np.float32)[:, None]
    seen: list[list[float]] = []

    class Seen(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.last = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            jax.debug.callback(lambda values: seen.append(values[:, 0].tolist()), x)
            return self.last(x)

    pipeline = sg.data.pipeline((numbers, numbers), 7, shuffle_seed=5)
    with strategy.scope():
        model = Seen()
        model.compile("sgd", "mse")
    model.fit(pipeline, epochs=2, verbose=0)
    jax.effects_barrier()
    assert len(seen) == 6
    fresh = sg.data.pipeline((numbers, numbers), 7, shuffle_seed=5)
    assert seen == [batch[0][:, 0].tolist() for _ in range(2) for batch in fresh]
    assert seen[:3] != seen[3:]


def test_a_pipeline_without_an_end(strategy: sg.OneDeviceStrategy) -> None:
    with strategy.scope():
        model = unbuilt()
    endless = sg.data.pipeline((X, Y), 7, epochs=None)
    with pytest.raises(sg.DataError, match=r"without an end .* as x: .* steps_per_epoch=3 for once over"):
        model.fit(endless, verbose=0)
    with pytest.raises(sg.DataError, match=r"as validation_data: .* validation_steps=3"):
        model.fit(X, Y, validation_data=endless, verbose=0)
    with pytest.raises(sg.DataError, match="given y beside a pipeline"):
        model.fit(endless, Y, steps_per_epoch=2, verbose=0)
    steps: list[int] = []
    counting = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    model.fit(endless, epochs=2, steps_per_epoch=5, callbacks=[counting], verbose=0)
    assert steps == [0, 1, 2, 3, 4] * 2
