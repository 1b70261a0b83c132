"""A Keras model with an embedding by row, under a strategy, beside plain Keras; run as a script by every worker.

python embedding_job.py DIRECTORY 'sg.ParameterServerStrategy()' 'keras.optimizers.SGD(0.1)' leaves each worker's
results in DIRECTORY/0-WORKER.npz; further strategies and optimizers may follow. The strategy `None` trains a
`keras.layers.Embedding` by plain Keras; one with `tables_above` has such a layer too.
"""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

import stratagem as sg
from stratagem.parameters.client import ServerClient

IDS = 40
FIT: dict[str, Any] = {"batch_size": 12, "epochs": 3, "shuffle": False, "verbose": 0}


def data() -> tuple[list[Any], Any]:
    numbers = np.random.default_rng(0)
    ids = numbers.integers(0, IDS, (48, 3))
    features = numbers.normal(size=(48, 2)).astype(np.float32)
    return [ids, features], np.sin(ids.sum(axis=1, keepdims=True)).astype(np.float32)


def made(scope: Any, embedding: Any, optimizer: Any) -> tuple[Any, Any]:
    keras.utils.set_random_seed(1)
    with scope:
        layer = embedding(IDS, 4, embeddings_initializer=keras.initializers.Constant(0.3), name="ids")
        ids, features = keras.Input((3,), dtype="int32"), keras.Input((2,))
        rows = keras.layers.Flatten()(layer(ids))
        hidden = keras.layers.Dense(4, "tanh")(keras.layers.concatenate([rows, features]))
        model = keras.Model([ids, features], keras.layers.Dense(1)(hidden))
        model.compile(optimizer, "mse", metrics=["mae"])
    return model, layer


def results(directory: Path, strategy: Any, optimizer: Any) -> dict[str, Any]:
    x, y = data()
    if strategy is None:
        model, layer = made(nullcontext(), keras.layers.Embedding, optimizer)
    else:
        kind = sg.keras.Embedding if strategy.tables_above is None else keras.layers.Embedding
        model, layer = made(strategy.scope(), kind, optimizer)
    asked = row_requests()
    slower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate if epoch < 2 else rate / 4)
    history = model.fit(x, y, validation_data=(x, y), callbacks=[slower], **FIT).history
    found = {name: np.asarray(values) for name, values in history.items()}
    found["asked"] = np.asarray(len(asked))
    found["evaluated"] = np.asarray(model.evaluate(x, y, verbose=0))
    found["predicted"] = model.predict(x, verbose=0)
    found["loaded"] = after_loading(model, directory / "model.weights.h5", x, y)
    if strategy is None:
        found["rows"], found["count"] = layer.get_weights()[0], np.asarray(len(np.unique(x[0])))
        found["kept"] = found["trained on"] = found["rows"]
    else:
        table = layer.table()
        found["rows"], found["count"] = table.lookup(np.arange(IDS)), np.asarray(len(table))
        model.save(directory / "model.keras")
        loaded = keras.models.load_model(directory / "model.keras")
        found["kept"] = loaded.get_layer("ids").table().lookup(np.arange(IDS))
        found["trained on"] = trained_on(strategy, loaded, x, y)
    return found


def row_requests() -> list[Any]:
    """What servers are asked from now on for rows to train on, other than with a push."""
    asked: list[Any] = []
    pull = ServerClient.pull_rows

    def pull_rows(client: ServerClient, wanted: Any, trains: bool = False) -> Any:
        if trains:
            asked.append(wanted)
        return pull(client, wanted, trains)

    ServerClient.pull_rows = pull_rows  # type: ignore[assignment,method-assign]
    return asked


def after_loading(model: Any, path: Path, x: Any, y: Any) -> Any:
    """What the model predicts with weights that were saved before an epoch, and loaded after it."""
    model.save_weights(path)
    once = {**FIT, "epochs": 1}
    model.fit(x, y, **once)
    model.load_weights(path)
    model.fit(x, y, sample_weight=np.zeros(len(y)), **once)  # by which all have met, and nothing is trained
    return model.predict(x, verbose=0)


def trained_on(strategy: Any, model: Any, x: Any, y: Any) -> Any:
    """The rows of a model that was loaded, after an epoch that leaves them as they are."""
    strategy.adopt(model)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(x, y, **{**FIT, "epochs": 1})
    return model.get_layer("ids").table().lookup(np.arange(IDS))


def main(directory: str, *contenders: str) -> None:
    for number, (strategy_code, optimizer) in enumerate(zip(contenders[::2], contenders[1::2], strict=True)):
        strategy = eval(strategy_code)  # noqa: S307
        found = results(Path(directory), strategy, eval(optimizer))  # noqa: S307
        worker = strategy.workers.index if strategy else 0
        np.savez(Path(directory) / f"{number}-{worker}.npz", allow_pickle=False, **found)
        if strategy:
            strategy.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
