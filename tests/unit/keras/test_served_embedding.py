"""`keras.layers.Embedding` in a scope that serves large ones by row."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import stratagem as sg
from stratagem.keras.embedding import RowLayer

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own
ROWS, DIM = 50, 4
BYTES = ROWS * DIM * 4
IDS = np.arange(12).reshape(6, 2)
Y = np.ones((6, 1), np.float32)


@pytest.fixture
def strategy() -> sg.OneDeviceStrategy:
    """Serves by row what is larger than a matrix of 50 rows; only servers let users choose that."""
    strategy = sg.OneDeviceStrategy()
    strategy.tables_above = BYTES - 1
    return strategy


def is_by_row(layer: Any) -> bool:
    return isinstance(layer, RowLayer)


def made(strategy: Any, embedding: Any) -> Any:
    with strategy.scope():
        model = keras.Sequential([embedding(), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def plain(**options: Any) -> Callable[[], Any]:
    return lambda: keras.layers.Embedding(**{"input_dim": ROWS, "output_dim": DIM, "name": "ids", **options})


def test_a_large_one_has_no_matrix_and_trains_its_rows(strategy: Any, tmp_path: Path) -> None:
    model = made(strategy, plain(mask_zero=True))
    layer = model.layers[0]
    assert is_by_row(layer)
    assert isinstance(layer, keras.layers.Embedding)
    model.build((None, 2))
    model.save(tmp_path / "new.keras")
    assert is_by_row(layer), "to save it made a matrix"
    model.fit(IDS, Y, verbose=0)
    assert not layer.weights
    assert len(layer.table()) == 12
    predicted = model.predict(IDS, verbose=0)
    with pytest.raises(sg.StrategyError, match=r"after they had been trained: layer\.table\(\) shows them"):
        _ = layer.embeddings
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    strategy.adopt(again)
    assert again.layers[0].mask_zero
    np.testing.assert_allclose(again.predict(IDS, verbose=0), predicted, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"embeddings_regularizer": "l2"}, "embeddings_regularizer"),
        ({"embeddings_constraint": "non_neg"}, "embeddings_constraint"),
        ({"lora_rank": 2}, "lora_rank"),
        ({"embeddings_initializer": "glorot_uniform"}, "cannot be drawn row by row"),
    ],
)
def test_what_needs_the_matrix_keeps_it(
    strategy: Any, options: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        model = made(strategy, plain(**options))
    assert "embedding 'ids' is a variable, and not served by row" in caplog.text
    assert reason in caplog.text
    model.fit(IDS, Y, verbose=0)
    assert type(model.layers[0]) is keras.layers.Embedding
    assert model.layers[0].weights


def test_small_ones_and_those_with_weights_stay_as_they_are(
    strategy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    given = np.ones((ROWS, DIM), np.float32)
    for options in ({"input_dim": ROWS - 1}, {"weights": given}):
        model = made(strategy, plain(**options))
        model.fit(IDS, Y, verbose=0)
        assert type(model.layers[0]) is keras.layers.Embedding
    assert type(plain()()) is keras.layers.Embedding, "outside of the scope"
    assert not caplog.records


class Tied(keras.Model):  # type: ignore[misc]
    """Its output shares the embedding's matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = plain()()

    def call(self, inputs: Any) -> Any:
        return keras.ops.matmul(
            keras.ops.mean(self.ids(inputs), axis=1), keras.ops.transpose(self.ids.embeddings)
        )


def test_an_output_that_shares_the_matrix_has_one(strategy: Any, caplog: pytest.LogCaptureFixture) -> None:
    with strategy.scope():
        model = Tied()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    assert is_by_row(model.ids)
    target = np.ones((6, ROWS), np.float32)
    with caplog.at_level(logging.WARNING):
        first = model.fit(IDS, target, epochs=2, verbose=0).history["loss"]
    assert "its matrix is used by more than its own look-ups" in caplog.text
    assert type(model.ids) is keras.layers.Embedding
    assert model.ids.weights[0].shape == (ROWS, DIM)
    assert first[1] < first[0]


@pytest.mark.parametrize("given", [-1, "many", True, 1.5])
def test_how_large_is_a_number_of_bytes(given: Any) -> None:
    with pytest.raises(sg.StrategyError, match="give a number of bytes of at least 0, or None"):
        sg.ParameterServerStrategy(tables_above=given)


def test_one_client_trains_no_tables() -> None:
    with pytest.raises(sg.StrategyError, match="use between-graph"):
        sg.ParameterServerStrategy(tables_above=0, replication="in-graph")


def test_rows_of_a_frozen_layer_stay_as_they_are(strategy: Any) -> None:
    model = made(strategy, plain(trainable=False))
    before = model.layers[0].table().lookup(IDS)
    kernel = model.layers[2].get_weights
    model.fit(IDS, Y, verbose=0)
    first = kernel()[0]
    model.fit(IDS, Y, verbose=0)
    assert (kernel()[0] != first).any()
    np.testing.assert_array_equal(model.layers[0].table().lookup(IDS), before)
