"""`sg.keras.Embedding`: what it takes and refuses, its shapes and masks, and its rows in one process."""

from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import optax
import pytest

import stratagem as sg

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own
LARGE = 2**40 + np.arange(6).reshape(3, 2)
"""Ids that neither 32 bits hold nor floating numbers tell apart."""
Y = np.asarray([[1.0], [0.0], [1.0]], np.float32)


def small(strategy: Any, **options: Any) -> Any:
    """A model that gives the sum of its rows' numbers; the layer's name is that of its table."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                sg.keras.Embedding(None, 2, name="ids", **options),
                keras.layers.Flatten(),
                keras.layers.Dense(1, kernel_initializer="ones"),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.mark.parametrize(
    "given",
    ["embeddings_regularizer", "embeddings_constraint", "weights", "lora_rank", "quantization_config"],
)
def test_what_needs_the_matrix_is_refused(given: str) -> None:
    with pytest.raises(sg.StrategyError, match=f"{given}, which needs the whole matrix"):
        sg.keras.Embedding(10, 2, **{given: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"input_dim": 0}, {"output_dim": 0}, {"expire_steps": 0}])
def test_numbers_are_checked(given: dict[str, Any]) -> None:
    with pytest.raises(sg.StrategyError, match="give a whole number of at least 1"):
        sg.keras.Embedding(**{"input_dim": 10, "output_dim": 2, **given})


@pytest.mark.parametrize(
    ("initializer", "low", "high", "mean"),
    [
        ("uniform", -0.05, 0.05, 0.0),
        (keras.initializers.RandomUniform(1.0, 2.0), 1.0, 2.0, 1.5),
        (keras.initializers.RandomNormal(3.0, 0.1), 2.0, 4.0, 3.0),
        (keras.initializers.TruncatedNormal(1.0, 0.5), 0.0, 2.0, 1.0),
        ("zeros", 0.0, 0.0, 0.0),
        ("ones", 1.0, 1.0, 1.0),
        (keras.initializers.Constant(0.25), 0.25, 0.25, 0.25),
    ],
)
def test_rows_are_drawn_as_the_initializer_draws(
    initializer: Any, low: float, high: float, mean: float
) -> None:
    table = sg.keras.Embedding(10, 400, embeddings_initializer=initializer).table_spec
    assert table.initializer is not None
    values = np.asarray(table.initializer(jax.random.key(0), (400,), np.float32))
    assert values.dtype == np.float32
    assert values.min() >= low
    assert values.max() <= high
    np.testing.assert_allclose(values.mean(), mean, atol=0.1)


def test_the_initializers_seed_is_the_tables() -> None:
    initializer = keras.initializers.RandomUniform(seed=7)
    assert sg.keras.Embedding(10, 2, embeddings_initializer=initializer).table_spec.seed == 7


@pytest.mark.parametrize("initializer", ["glorot_uniform", keras.initializers.Constant(np.ones(3)), None])
def test_other_initializers_are_refused_by_name(initializer: Any) -> None:
    with pytest.raises(sg.StrategyError, match="cannot be drawn row by row: give one of RandomUniform"):
        sg.keras.Embedding(10, 3, embeddings_initializer=initializer)


def test_shapes_and_masks_are_those_of_the_dense_layer() -> None:
    layer, dense = (kind(10, 4, mask_zero=True) for kind in (sg.keras.Embedding, keras.layers.Embedding))
    ids = keras.Input((3,), dtype="int32")
    assert (layer(ids).shape, layer(ids).dtype) == (dense(ids).shape, dense(ids).dtype)
    given = np.asarray([[0, 1, 2]])
    np.testing.assert_array_equal(layer.compute_mask(given), dense.compute_mask(given))
    assert layer.supports_masking
    assert sg.keras.Embedding(10, 4).compute_mask(given) is None
    assert sg.keras.Embedding(10, 4, dtype="mixed_bfloat16")(ids).dtype == "bfloat16"
    assert not layer.weights


def test_it_is_made_again_of_its_configuration() -> None:
    layer = sg.keras.Embedding(
        None, 4, keras.initializers.Zeros(), optimizer=keras.optimizers.Adagrad(0.5), admit_after=2, name="a"
    )
    again = sg.keras.Embedding.from_config(layer.get_config())
    assert (again.table_spec.rows, again.table_spec.dim, again.table_spec.admit_after) == (None, 4, 2)
    assert float(again.optimizer.learning_rate) == 0.5
    assert isinstance(again.embeddings_initializer, keras.initializers.Zeros)


@pytest.mark.parametrize("name", ["Hashing", "StringLookup", "IntegerLookup", "HashedCrossing"])
def test_layers_that_need_tensorflow_say_so_where_there_is_none(name: str) -> None:
    with (
        sg.OneDeviceStrategy().scope(),
        pytest.raises(ImportError, match=f"Layer {name} requires TensorFlow"),
    ):
        getattr(keras.layers, name)(10)


def test_without_a_strategy_there_are_no_rows() -> None:
    assert len(sg.keras.Embedding(10, 2, name="alone").table()) == 0
    model = keras.Sequential([sg.keras.Embedding(10, 2, name="alone"), keras.layers.Flatten()])
    with pytest.raises(sg.StrategyError, match="outside of what a strategy trains"):
        model.predict(np.zeros((2, 3), np.int32), verbose=0)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (keras.optimizers.SGD(0.1, clipnorm=1.0), "does not treat every row by itself"),
        (keras.optimizers.SGD(0.1, use_ema=True), "use_ema=True"),
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "scales the loss"),
    ],
)
def test_optimizers_that_mix_rows_are_refused(optimizer: Any, message: str) -> None:
    model = small(sg.OneDeviceStrategy())
    model.compile(optimizer, "mse")
    with pytest.raises(sg.StrategyError, match=message):
        model.fit(LARGE, Y, verbose=0)


def test_ids_out_of_range_are_named() -> None:
    with sg.OneDeviceStrategy().scope():
        model = keras.Sequential([sg.keras.Embedding(10, 2, name="ids"), keras.layers.Flatten()])
        model.compile("sgd", "mse")
    with pytest.raises(sg.DataError, match=r"its ids are 0 to 9; .* is 12"):
        model.predict(np.asarray([[1, 12]]), verbose=0)


def test_rows_of_large_ids_are_trained_kept_and_loaded(tmp_path: Path) -> None:
    strategy = sg.OneDeviceStrategy()
    model = small(strategy)
    first = model.predict(LARGE, verbose=0)
    layer = model.layers[0]
    assert len(layer.table()) == 0, "whoever only looks makes rows"
    before = layer.table().lookup(LARGE)
    model.fit(LARGE, Y, epochs=2, verbose=0)
    table = layer.table()
    assert len(table) == 6
    rows = table.lookup(LARGE)
    assert (rows != before).all()
    predicted = model.predict(LARGE, verbose=0)
    assert (predicted != first).all()

    model.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.layers[0].table().lookup(LARGE), rows)
    np.testing.assert_allclose(loaded.predict(LARGE, verbose=0), predicted, rtol=1e-6)
    loaded.fit(LARGE, Y, verbose=0)
    assert (loaded.layers[0].table().lookup(LARGE) != rows).all()

    path = tmp_path / "a.weights.h5"
    model.save_weights(path)
    model.fit(LARGE + 6, Y, verbose=0)
    assert len(layer.table()) == 12
    model.load_weights(path)
    assert len(layer.table()) == 6
    np.testing.assert_allclose(model.predict(LARGE, verbose=0), predicted, rtol=1e-6)
    with pytest.raises(sg.StrategyError, match=r"kept in \.keras files only"):
        model.save(tmp_path / "model.h5")
    with pytest.raises(sg.StrategyError, match=r"only keras\.models\.load_model reads them"):
        model.load_weights(tmp_path / "model.keras")


def test_an_input_of_64_bits_is_looked_up_as_it_is() -> None:
    with sg.OneDeviceStrategy().scope():
        ids = keras.Input((2,), dtype="int64")
        layer = sg.keras.Embedding(None, 2, name="ids")
        model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(layer(ids))))
        model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(LARGE, Y, verbose=0)
    model.evaluate(LARGE, Y, verbose=0)
    model.predict(LARGE, verbose=0)
    assert sorted(np.concatenate([ids for ids, _ in layer.table().items()])) == LARGE.ravel().tolist()


def test_a_layer_has_an_optimizer_and_a_learning_rate_of_its_own() -> None:
    still = small(sg.OneDeviceStrategy(), optimizer=optax.set_to_zero())
    before = still.predict(LARGE, verbose=0)
    still.fit(LARGE, Y, verbose=0)
    assert (still.predict(LARGE, verbose=0) != before).all(), "nothing was trained"
    table = still.layers[0].table()
    first = table.lookup(LARGE)
    still.fit(LARGE, Y, verbose=0)
    np.testing.assert_array_equal(table.lookup(LARGE), first)

    model = small(sg.OneDeviceStrategy())
    model.fit(LARGE, Y, verbose=0)
    rows = model.layers[0].table().lookup(LARGE)
    model.optimizer.learning_rate = 0.0
    model.fit(LARGE, Y, verbose=0)
    np.testing.assert_array_equal(model.layers[0].table().lookup(LARGE), rows)
