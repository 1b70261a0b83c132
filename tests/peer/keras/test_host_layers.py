"""Layers that TensorFlow computes, before embeddings by row: a model trains as if their results had been given to it."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow

import stratagem as sg
from stratagem.keras.host_layers import HostLayers
from unit.keras.beside_plain_keras import OPTIONS

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras's own
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64:UserWarning"),
]
BINS = 30
LARGE = 2**40 + np.arange(42).reshape(21, 2) % 17
WORDS = np.asarray([[f"word {number % 8}"] for number in range(21)])
Y = np.linspace(0.0, 1.0, 21, dtype=np.float32)[:, None]


def hashing() -> Any:
    return keras.layers.Hashing(BINS)


def string_lookup() -> Any:
    return keras.layers.StringLookup(vocabulary=[f"word {number}" for number in range(5)])


def integer_lookup() -> Any:
    return keras.layers.IntegerLookup(vocabulary=[2**40 + number for number in range(9)])


def adopted(inputs: Any, ids: Any, embedding: Any) -> Any:
    rows = keras.layers.Flatten()(embedding(ids))
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(rows))
    model.compile(keras.optimizers.SGD(0.5), "mse")
    return model


def by_row() -> Any:
    return sg.keras.Embedding(BINS, 3, embeddings_initializer=keras.initializers.Constant(0.1), name="ids")


def trained(model: Any, x: Any) -> dict[str, Any]:
    history = model.fit(x, Y, epochs=2, validation_data=(x, Y), **OPTIONS).history
    return {
        **history,
        "evaluated": model.evaluate(x, Y, verbose=0),
        "predicted": model.predict(x, verbose=0),
        "rows": model.get_layer("ids").table().lookup(np.arange(BINS)),
    }


def on_ids(ids: Any) -> dict[str, Any]:
    """What a model comes to that is given the ids."""
    with sg.OneDeviceStrategy().scope():
        given = keras.Input(ids.shape[1:], dtype="int32")
        return trained(adopted(given, given, by_row()), ids)


def check(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (hashing, LARGE),
        (hashing, WORDS),
        (hashing, WORDS[:, 0].astype(object)),
        (string_lookup, WORDS),
        (integer_lookup, LARGE),
    ],
)
@pytest.mark.parametrize("is_sequential", [False, True])
def test_a_layer_before_an_embedding(make: Callable[[], Any], x: Any, is_sequential: bool) -> None:
    with sg.OneDeviceStrategy().scope():
        given = keras.Input(x.shape[1:] or (1,), dtype="string" if x.dtype.kind in "OU" else "int64")
        layer = make()
        model = adopted(given, layer(given), by_row())
        if is_sequential:
            model = keras.Sequential([given, *model.layers[1:]])
            model.compile(keras.optimizers.SGD(0.5), "mse")
    ids = tensorflow.function(layer)(x.reshape(len(x), -1)).numpy()
    check(trained(model, x), on_ids(ids))


def test_layers_that_share_inputs_with_each_other_and_with_others() -> None:
    small = np.arange(21)[:, None] % 11
    layers = hashing(), keras.layers.HashedCrossing(BINS), string_lookup()
    with sg.OneDeviceStrategy().scope():
        word, number = (
            keras.Input((1,), dtype="string", name="word"),
            keras.Input((1,), dtype="int32", name="n"),
        )
        hashed, crossing, lookup = layers
        ids = [hashed(word), crossing((word, number)), hashed(number), number, hashed(lookup(word))]
        model = adopted([word, number], keras.layers.concatenate([*map(as_int32, ids)]), by_row())
    with tensorflow.device("CPU:0"):
        words = tensorflow.convert_to_tensor(WORDS)
        known = [hashed(words), crossing((words, small)), hashed(small), small, hashed(lookup(words))]
    expected = on_ids(np.concatenate([np.asarray(each) for each in known], axis=1))
    found = trained(model, {"n": small, "word": WORDS})
    check(found, expected)


def as_int32(ids: Any) -> Any:
    return keras.ops.cast(ids, "int32")


def test_large_embeddings_of_keras_and_batches_of_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = sg.OneDeviceStrategy()
    strategy.tables_above = 0  # only servers let users choose that
    with strategy.scope():
        given = keras.Input((1,), dtype="string")
        constant = keras.initializers.Constant(0.1)
        embedding = keras.layers.Embedding(BINS, 3, embeddings_initializer=constant, name="ids")
        model = adopted(given, hashing()(given), embedding)
    batches_computed: list[Any] = []
    compute = HostLayers.__call__

    def counted(layers: HostLayers, batch: Any) -> Any:
        batches_computed.append(batch)
        return compute(layers, batch)

    monkeypatch.setattr(HostLayers, "__call__", counted)
    batches = tensorflow.data.Dataset.from_tensor_slices((WORDS, Y)).batch(7)
    history = model.fit(batches, epochs=2, shuffle=False, verbose=0).history
    assert len(batches_computed) == 1 + 2 * 3, "once to build the model, then once for each batch"
    expected = on_ids(np.asarray(hashing()(WORDS)))
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-5)


def test_one_batch_at_a_time_and_another_vocabulary() -> None:
    x = np.arange(5)[:, None]
    with sg.OneDeviceStrategy().scope():
        given = keras.Input((1,), dtype="int64")
        layer = keras.layers.IntegerLookup(vocabulary=[0, 1, 2, 3])
        model = adopted(given, layer(given), by_row())
    for _ in range(2):
        model.train_on_batch(x, Y[:5])
        assert model.test_on_batch(x, Y[:5]) > 0
    assert len(model.get_layer("ids").table()) == 5
    before = model.predict_on_batch(x)
    layer.set_vocabulary([3, 2, 1, 0])
    np.testing.assert_allclose(model.predict_on_batch(x)[:4], before[3::-1], rtol=1e-6)


def test_training_and_evaluation_share_what_tensorflow_has_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    functions: list[Any] = []
    make = tensorflow.function

    def recorded(*args: Any, **kwargs: Any) -> Any:
        functions.append(make(*args, **kwargs))
        return functions[-1]

    with sg.OneDeviceStrategy().scope():
        given = keras.Input((1,), dtype="string")
        model = adopted(given, hashing()(given), by_row())
    monkeypatch.setattr(tensorflow, "function", recorded)
    model.fit(WORDS, Y, epochs=2, validation_data=(WORDS, Y), **OPTIONS)
    model.evaluate(WORDS, Y, batch_size=OPTIONS["batch_size"], verbose=0)
    model.predict(WORDS, batch_size=OPTIONS["batch_size"], verbose=0)
    assert [function.experimental_get_tracing_count() for function in functions] == [1]


def within_a_model(given: Any) -> Any:
    return keras.Sequential([keras.Input((2,), dtype="int64"), hashing()])(given)


def behind_another_layer(given: Any) -> Any:
    return hashing()(keras.layers.Flatten(name="flat")(given))


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        (within_a_model, "within another layer or model"),
        (behind_another_layer, "takes what Flatten 'flat' gives"),
    ],
)
def test_what_cannot_be_computed_before_the_step_is_refused(ids: Callable[[Any], Any], reason: str) -> None:
    with sg.OneDeviceStrategy().scope():
        given = keras.Input((2,), dtype="int64")
        model = adopted(given, ids(given), by_row())
    with pytest.raises(
        sg.StrategyError, match=f"^Hashing 'hashing.*{reason}; such layers are computed on the host"
    ):
        model.fit(LARGE, Y, **OPTIONS)


def test_a_model_without_a_graph_is_refused() -> None:
    with sg.OneDeviceStrategy().scope():
        model = keras.Sequential([hashing(), by_row(), keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(sg.StrategyError, match=r"does not begin with a keras\.Input"):
        model.fit(LARGE, Y, **OPTIONS)


class AddsOne(keras.Model):  # type: ignore[misc]
    """Calls itself on something else than its batch."""

    def train_step(self, state: Any, data: Any) -> Any:
        return super().train_step(state, (data[0] + 1, *data[1:]))


def test_a_model_that_is_called_on_something_else_is_refused() -> None:
    with sg.OneDeviceStrategy().scope():
        given = keras.Input((2,), dtype="int64")
        rows = keras.layers.Flatten()(by_row()(hashing()(given)))
        model = AddsOne(given, keras.layers.Dense(1)(rows))
        model.compile("sgd", "mse")
    with pytest.raises(sg.StrategyError, match="was called on something else than the x of its batch"):
        model.fit(LARGE, Y, **OPTIONS)
