"""The model in Keras, for `fit` with and without a strategy."""

from collections.abc import Iterable, Iterator
from typing import Any

import keras

from benchmarks.racing.work import LEARNING_RATE, Work


def build(work: Work) -> Any:
    """Return a compiled model with the same initial parameters as all other contenders'."""
    *hidden, last = work.sizes[1:]
    model = keras.Sequential(
        [
            keras.layers.Input((work.sizes[0],)),
            *(keras.layers.Dense(width, activation="relu") for width in hidden),
            keras.layers.Dense(last),
        ]
    )
    model.set_weights([array for layer in work.layers() for array in layer])
    model.compile(
        optimizer=keras.optimizers.SGD(LEARNING_RATE),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def fit(model: Any, batches: Iterable[Any]) -> float:
    """Train one epoch of these batches, and return its mean loss."""
    return float(model.fit(_each(batches), epochs=1, verbose=0).history["loss"][-1])


def _each(batches: Iterable[Any]) -> Iterator[Any]:
    yield from batches
