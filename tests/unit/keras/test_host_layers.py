"""Layers that the host computes: a model has one object for them, until its graph changes. Needs no TensorFlow."""

from typing import Any

import keras
import pytest

from stratagem.keras import host_layers
from stratagem.keras.host_layers import host_layers_of


class Doubling(keras.layers.Layer):  # type: ignore[misc]
    """Stands for a layer that TensorFlow computes."""

    def call(self, inputs: Any) -> Any:
        return 2 * inputs


@pytest.fixture(autouse=True)
def _is_computed_on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_layers, "_KINDS", (Doubling,))


def test_a_model_without_such_layers_has_none() -> None:
    assert host_layers_of(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])) is None


def test_a_functional_model_has_one_object_for_them() -> None:
    given = keras.Input((2,))
    model = keras.Model(given, keras.layers.Dense(1)(Doubling()(given)))
    first = host_layers_of(model)
    assert first is not None
    assert host_layers_of(model) is first
    other = keras.Model(given, model.output)
    assert host_layers_of(other) not in (None, first)


def test_another_graph_has_another_object() -> None:
    model = keras.Sequential([keras.Input((2,)), Doubling()])
    first = host_layers_of(model)
    assert host_layers_of(model) is first
    model.add(keras.layers.Dense(1))
    second = host_layers_of(model)
    assert second not in (None, first)
    assert host_layers_of(model) is second
    model.pop()
    assert host_layers_of(model) not in (None, first, second)
