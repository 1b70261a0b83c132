"""Small trainings in Keras, each told as arrays by name: done plainly, they are what every strategy has to come to.

Where each training is to go on, a `Place` says.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np

import stratagem as sg
from drills.task_messages import wait_for

Found = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a training goes on.

    Attributes:
        directory: One that all workers share.
        scope: The block in which models are made: that of a strategy, or one that does nothing.
        worker: Which worker this is; the first is chief.
        workers: How many there are.
    """

    directory: Path
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    worker: int = 0
    workers: int = 1

    def meet(self) -> None:
        """Wait until all workers have come here."""
        (self.directory / f"met-{self.worker}").touch()
        for worker in range(self.workers):
            wait_for(self.directory / f"met-{worker}")


Case = Callable[[Place], Found]

ROWS = 21
"""In batches of ten: two that divide over two workers and one of a single row, which leaves some without any."""
SIZES = (8, 8, 5)
"""The same rows in batches that divide over three workers as little as over two."""
_RANDOM = np.random.default_rng(0)
X = _RANDOM.standard_normal((ROWS, 4)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.float32)[:, None]
Z = np.stack([X[:, 0] > 0, X[:, 1] > 0, X[:, 2] > 0], axis=1).astype(np.float32)
WEIGHTS = np.linspace(0.5, 1.5, ROWS).astype(np.float32)


class Blocks(keras.utils.PyDataset):  # type: ignore[misc]
    """Rows in batches of sizes that vary."""

    def __init__(self, *arrays: Any, sizes: tuple[int, ...] = SIZES) -> None:
        super().__init__()
        self._arrays = arrays
        self._ends = np.cumsum(sizes)
        self._sizes = sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, index: int) -> Any:
        rows = slice(self._ends[index] - self._sizes[index], self._ends[index])
        return jax.tree.map(lambda array: array[rows], self._arrays)


def blocks(sizes: tuple[int, ...] = SIZES) -> Iterator[Any]:
    """The same as a generator, without end."""
    dataset = Blocks(X, Y, sizes=sizes)
    while True:
        for number in range(len(dataset)):
            yield dataset[number]


def in_order(place: Place, batch_size: int) -> Found:
    """All rows as arguments: plainly as arrays, under a strategy as a pipeline of the same batches."""
    if place.scope is nullcontext:
        return {"x": X, "y": Y, "batch_size": batch_size}
    return {"x": sg.data.pipeline((X, Y), batch_size)}


def dense(*between: Any) -> Any:
    """A model of two layers, and whatever is to be between them."""
    layers = keras.layers
    return keras.Sequential(
        [layers.Input((4,)), layers.Dense(6, "tanh"), *between, layers.Dense(1, "sigmoid")]
    )


def told(history: Any, prefix: str = "history") -> Found:
    """A `History`, by name."""
    return {f"{prefix}/{name}": values for name, values in history.history.items()}


def held(model: Any, prefix: str = "model") -> Found:
    """All values that a model holds, by number."""
    found = {f"{prefix}/weights/{place}": value for place, value in enumerate(model.get_weights())}
    found.update(
        {
            f"{prefix}/optimizer/{place}": np.asarray(variable)
            for place, variable in enumerate(model.optimizer.variables)
        }
    )
    return found


def numbered(prefix: str, values: Any) -> Found:
    """A list of numbers, as Keras gives them."""
    return {f"{prefix}/{place}": value for place, value in enumerate(np.atleast_1d(values))}


def everyday(place: Place) -> Found:
    """All that a model offers, with arrays; class weights, metrics of many kinds, batches that do not divide."""
    with place.scope():
        model = dense()
        model.compile(
            keras.optimizers.Adam(0.01),
            "binary_crossentropy",
            metrics=[
                "accuracy",
                "mae",
                keras.metrics.AUC(name="auc"),
                keras.metrics.Precision(name="precision"),
            ],
        )
    history = model.fit(
        X,
        Y,
        batch_size=10,
        epochs=2,
        shuffle=False,
        verbose=0,
        class_weight={0: 1.0, 1: 2.0},
        validation_data=(X[:11], Y[:11]),
    )
    found = {**told(history), **held(model)}
    found.update(numbered("evaluate", model.evaluate(X, Y, batch_size=10, verbose=0)))
    found["predict"] = model.predict(X, batch_size=10, verbose=0)
    found.update(numbered("train_on_batch", model.train_on_batch(X[:10], Y[:10], sample_weight=WEIGHTS[:10])))
    found.update(numbered("test_on_batch", model.test_on_batch(X[:10], Y[:10])))
    found["predict_on_batch"] = model.predict_on_batch(X[:10])
    found["call"] = np.asarray(model(X[:10]))
    model.set_weights([weight * 0.5 for weight in model.get_weights()])
    found.update(numbered("evaluate again", model.evaluate(X[:10], Y[:10], verbose=0)))
    model.optimizer.learning_rate = 0.1
    history = model.fit(
        X, Y, batch_size=10, epochs=3, initial_epoch=1, shuffle=False, verbose=0, sample_weight=WEIGHTS
    )
    found.update({**told(history, "again"), **held(model, "after")})
    return found


def outputs(place: Place) -> Found:
    """A functional model of two inputs and outputs, nested, with regularisation, a schedule and clipped gradients."""
    layers = keras.layers
    with place.scope():
        inside = keras.Sequential([layers.Dense(5, "tanh", kernel_regularizer=keras.regularizers.L2(0.01))])
        inputs = {"left": keras.Input((2,), name="left"), "right": keras.Input((2,), name="right")}
        joined = inside(layers.Concatenate()([inputs["left"], inputs["right"]]))
        model = keras.Model(
            inputs,
            {
                "one": layers.Dense(1, name="one")(joined),
                "three": layers.Dense(3, "sigmoid", name="three")(joined),
            },
        )
        rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
        model.compile(
            keras.optimizers.SGD(rate, momentum=0.9, global_clipnorm=0.3),
            loss={"one": "mse", "three": "binary_crossentropy"},
            loss_weights={"one": 1.0, "three": 0.5},
            metrics={"three": [keras.metrics.F1Score(average="macro", name="f1")]},
            weighted_metrics={"one": ["mae"]},
            steps_per_execution=3,
        )
    x = {"left": X[:, :2], "right": X[:, 2:]}
    y, weights = {"one": Y, "three": Z}, {"one": WEIGHTS, "three": np.ones_like(WEIGHTS)}
    data = Blocks(x, y, weights)
    history = model.fit(data, epochs=2, shuffle=False, verbose=0, validation_data=data)
    found = {**told(history), **held(model)}
    evaluated = model.evaluate(data, return_dict=True, verbose=0)
    found.update({f"evaluate/{name}": value for name, value in evaluated.items()})
    predicted = model.predict(Blocks(x), verbose=0)
    return {**found, **{f"predict/{name}": value for name, value in predicted.items()}}


class OwnStep(keras.Model):  # type: ignore[misc]
    """A model that trains in a way of its own: on the mean of two losses, and with a metric of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(6, "tanh")
        self.last = keras.layers.Dense(1)
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, x: Any) -> Any:
        return self.last(self.hidden(x))

    @property
    def metrics(self) -> list[Any]:
        return [self.seen]

    def train_step(self, state: Any, data: Any) -> Any:
        params, others, slots, measured = state
        x, y, *_ = data

        def loss_of(params: Any) -> Any:
            predicted, after = self.stateless_call(params, others, x)
            error = predicted - y
            return 0.5 * ((error**2).mean() + abs(error).mean()), after

        (loss, others), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        params, slots = self.optimizer.stateless_apply(slots, grads, params)
        measured = self.seen.stateless_update_state(measured, loss, sample_weight=x.shape[0])
        return {"seen": self.seen.stateless_result(measured)}, (params, others, slots, measured)


def own_step(place: Place) -> Found:
    """A subclassed model with a `train_step` of its own, from a generator; gradients are accumulated."""
    with place.scope():
        model = OwnStep()
        model.compile(keras.optimizers.Adam(0.02, gradient_accumulation_steps=2))
    history = model.fit(blocks(), epochs=2, steps_per_epoch=5, shuffle=False, verbose=0)
    return {**told(history), **held(model), "predict": model.predict(X, batch_size=8, verbose=0)}


class NestedLogs(OwnStep):
    """A model whose steps tell dictionaries in dictionaries: metrics, and what is of the last batch only."""

    def __init__(self) -> None:
        super().__init__()
        self.mae = keras.metrics.MeanAbsoluteError(name="mae")

    @property
    def metrics(self) -> list[Any]:
        return [self.seen, self.mae]

    def train_step(self, state: Any, data: Any) -> Any:
        count = len(self.seen.variables)
        logs, (params, others, slots, seen) = super().train_step((*state[:3], state[3][:count]), data)
        # With the values before the update: those after it are not known before all workers' gradients are.
        told, measured = self._errors((*state[:2], [*seen, *state[3][count:]]), data)
        return {"all": {**logs, "errors": told}}, (params, others, slots, measured)

    def test_step(self, state: Any, data: Any) -> Any:
        told, measured = self._errors(state, data)
        return {"errors": told}, (*state[:2], measured)

    def _errors(self, state: Any, data: Any) -> Any:
        params, others, measured = state
        x, y, *_ = data
        predicted, _ = self.stateless_call(params, others, x)
        kept = measured[: len(self.seen.variables)]
        mae = self.mae.stateless_update_state(measured[len(kept) :], y, predicted)
        last = {"last": {"bias": (predicted - y).mean()}}
        return {"mae": self.mae.stateless_result(mae), **last}, [*kept, *mae]


class NestedMetrics(keras.Sequential):  # type: ignore[misc]
    """A model with Keras's own steps, and metrics in a dictionary of their own."""

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        told = super().compute_metrics(x, y, y_pred, sample_weight)
        return {"loss": told.pop("loss"), "metrics": {"compiled": told}}


def nested(place: Place) -> Found:
    """Logs that are dictionaries in dictionaries, which Keras shows without these; and a metric of several numbers."""
    with place.scope():
        own = NestedLogs()
        own.compile(keras.optimizers.SGD(0.1))
        usual = NestedMetrics([keras.layers.Dense(3, "sigmoid")])
        usual.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae", keras.metrics.F1Score(None, 0.5)])
    found: Found = {}
    models: dict[str, Any] = {"own": (own, Y), "usual": (usual, Z)}
    for name, (model, y) in models.items():
        seen: list[str] = []
        callback = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, seen=seen: seen.append(" ".join(sorted(logs)))
        )
        history = model.fit(
            X, y, batch_size=10, epochs=2, validation_data=(X, y), callbacks=[callback], **_PLAINLY
        )
        found.update({**told(history, name), f"{name}/names": sorted(history.history)})
        found[f"{name}/batches"] = seen
        evaluated = model.evaluate(X, y, batch_size=10, verbose=0, return_dict=True)
        found.update({f"{name}/evaluate/{each}": value for each, value in evaluated.items()})
        for method in (model.train_on_batch, model.test_on_batch):
            batch = method(X[:10], y[:10], return_dict=True)
            found.update({f"{name}/{method.__name__}/{each}": value for each, value in batch.items()})
    return found


def averaged(place: Place) -> Found:
    """Moving averages of the weights, of which a callback has validation made; one layer is not trained."""
    with place.scope():
        model = dense(keras.layers.Dense(3, name="frozen"))
        model.get_layer("frozen").trainable = False
        model.compile(
            keras.optimizers.AdamW(0.05, use_ema=True, ema_momentum=0.8, clipnorm=0.1), "mse", metrics=["mae"]
        )
    callbacks = [keras.callbacks.SwapEMAWeights()]
    options: dict[str, Any] = {"batch_size": 7, "shuffle": False, "verbose": 0, "callbacks": callbacks}
    history = model.fit(X, Y, epochs=2, validation_data=(X, Y), **options)
    found = {**told(history), **held(model)}
    model.get_layer("frozen").trainable = True
    model.compile(keras.optimizers.SGD(0.05), "mae")
    history = model.fit(**in_order(place, 7), epochs=2, shuffle=False, verbose=0)
    found["evaluate"] = model.evaluate(**in_order(place, 8), verbose=0)
    return {**found, **told(history, "again"), **held(model, "after")}


def called_back(place: Place) -> Found:
    """Callbacks that change the learning rate, and stop and go back to the best weights."""
    with place.scope():
        model = dense()
        model.compile(keras.optimizers.SGD(0.5), "mse")
    rates = []
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 1.5),
        keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=1.0, factor=0.3),
        keras.callbacks.EarlyStopping(patience=2, min_delta=1.0, restore_best_weights=True),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: rates.append(float(model.optimizer.learning_rate))
        ),
    ]
    history = model.fit(
        X, Y, batch_size=7, epochs=9, shuffle=False, verbose=0, validation_split=0.3, callbacks=callbacks
    )
    found = {**told(history), **held(model), "rates": rates}
    found["evaluate"] = model.evaluate(X, Y, batch_size=7, verbose=0)
    history = model.fit(X, Y, batch_size=7, shuffle=False, verbose=0)
    return {**found, **told(history, "again"), **held(model, "after")}


def untrained(place: Place) -> Found:
    """A model that is asked before it is trained, then trained batch by batch."""
    with place.scope():
        model = dense()
        model.compile(keras.optimizers.SGD(0.2, momentum=0.5), "mse", metrics=["mae"])
    found = {"predict": model.predict(X, batch_size=7, verbose=0)}
    found.update(numbered("evaluate", model.evaluate(X, Y, batch_size=7, verbose=0)))
    for number in range(3):
        found.update(
            numbered(f"batch {number}", model.train_on_batch(X[number : 5 + number], Y[number : 5 + number]))
        )
    return {**found, **held(model)}


def few(place: Place) -> Found:
    """One row in all, which is one worker's: the others hear of everything all the same."""
    with place.scope():
        model = dense()
        model.compile("sgd", "mse", metrics=["mae"])
    found = numbered("evaluate", model.evaluate(X[:1], Y[:1], verbose=0))
    history = model.fit(X[:1], Y[:1], epochs=2, verbose=0, validation_data=(X[:1], Y[:1]))
    found.update({**told(history), **held(model), "predict": model.predict(X[:1], verbose=0)})
    found.update(numbered("train_on_batch", model.train_on_batch(X[:1], Y[:1])))
    return found


def backed_up(place: Place) -> Found:
    """A training that fails, and another that goes on from its backup."""

    def fail(epoch: int, logs: Any) -> None:
        if epoch == 2:
            raise RuntimeError("a mistake of the user's")

    with place.scope():
        first, second = dense(), dense()
        for model in (first, second):
            model.compile(keras.optimizers.Adam(0.05), "mse")
    options: dict[str, Any] = {"batch_size": 7, "shuffle": False, "verbose": 0, "epochs": 4}
    failing = keras.callbacks.LambdaCallback(on_epoch_begin=fail)
    backup = place.directory / "backup"
    try:
        first.fit(X, Y, callbacks=[keras.callbacks.BackupAndRestore(backup), failing], **options)
    except RuntimeError as error:
        found = {"error": str(error), **held(first, "failed")}
    history = second.fit(X, Y, callbacks=[keras.callbacks.BackupAndRestore(backup)], **options)
    return {**found, **told(history), "epochs": history.epoch, **held(second)}


def loaded(place: Place) -> Found:
    """A model that is saved, loaded, cloned and made anew from its configuration."""
    path = place.directory / "saved.keras"
    with place.scope():
        model = dense()
        model.compile(keras.optimizers.Adam(0.05), "mse")
    options: dict[str, Any] = {"batch_size": 7, "shuffle": False, "verbose": 0}
    own = place.directory / f"worker-{place.worker}"
    own.mkdir()
    callbacks = [
        keras.callbacks.ModelCheckpoint(path),
        keras.callbacks.ModelCheckpoint(
            own / "{epoch}-{loss:.2f}.weights.h5", save_weights_only=True, save_freq=2
        ),
        keras.callbacks.CSVLogger(own / "log.csv"),
    ]
    model.fit(X, Y, callbacks=callbacks, **{**options, "verbose": 2})
    with place.scope():
        back = keras.models.load_model(path)
        cloned = keras.models.clone_model(model)
        remade = type(model).from_config(model.get_config())
    found = held(back, "loaded")
    history = back.fit(X, Y, **options)
    found.update({**told(history), **held(back)})
    for name, other in {"cloned": cloned, "remade": remade}.items():
        other.compile("sgd", "mse")
        other.set_weights(model.get_weights())
        found.update(told(other.fit(X, Y, **options), name))
    return found


def saved(place: Place) -> Found:
    """Models that every worker saves and loads: after a training, during one, by callbacks, and where it likes."""
    directory, options = place.directory, {"batch_size": 7, "shuffle": False, "verbose": 0}
    by_orbax = keras.callbacks.OrbaxCheckpoint(directory / "orbax")
    place.meet()  # to make it, each worker has looked through the directory, where the chief removes things later
    with place.scope():
        inputs = keras.Input((4,))  # Orbax's checkpoints of Sequential models come back with other values
        model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(keras.layers.Dense(6, "tanh")(inputs)))
        model.compile(keras.optimizers.Adam(0.05), "mse")
    found: Found = {}

    def take(path: Path, name: str) -> Any:
        with place.scope():
            back = keras.models.load_model(path)
        found.update(held(back, name))
        return back

    model.fit(X, Y, **options)
    for number in range(3):
        model.save(directory / "model.keras")
        back = take(directory / "model.keras", f"loaded {number}")
        pairs = zip(model.get_weights(), back.get_weights(), strict=True)
        found[f"difference {number}"] = max(abs(mine - other).max() for mine, other in pairs)
        found[f"predicted {number}"] = abs(model.predict(X, verbose=0) - back.predict(X, verbose=0)).max()
        model = back
        model.fit(X, Y, **options)
    if place.worker == 0:
        model.save(directory / "chief.keras")
    own = directory / f"own-{place.worker}.keras"
    model.save(filepath=str(own))
    take(own, "own")
    model.save_weights(directory / "model.weights.h5")
    model.load_weights(directory / "model.weights.h5")

    def save(epoch: int, logs: Any) -> None:
        model.save(directory / f"epoch-{epoch}.keras")
        take(directory / f"epoch-{epoch}.keras", f"epoch {epoch}")

    callbacks = [
        keras.callbacks.LambdaCallback(on_epoch_end=save),
        keras.callbacks.ModelCheckpoint(directory / "newest.keras"),
        by_orbax,
    ]
    model.fit(X, Y, epochs=2, callbacks=callbacks, **options)
    take(directory / "newest.keras", "newest")
    take(directory / "orbax", "orbax")
    return found


def noisy(place: Place) -> Found:
    """Statistics over the batch, and random numbers."""
    with place.scope():
        model = dense(keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dropout(0.3))
        model.compile("adam", "binary_crossentropy")
    history = model.fit(X, Y, batch_size=7, epochs=2, shuffle=False, verbose=0, validation_data=(X, Y))
    return {**told(history), **held(model), "predict": model.predict(X, batch_size=7, verbose=0)}


def scaled(place: Place) -> Found:
    """Half precision, with the loss scaled, and a row whose gradient is not finite."""
    policy = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        with place.scope():
            model = dense()
            model.compile(
                keras.optimizers.LossScaleOptimizer(
                    keras.optimizers.SGD(0.1), initial_scale=2.0**10, dynamic_growth_steps=3
                ),
                "mse",
            )
    finally:
        keras.mixed_precision.set_dtype_policy(policy)
    labels = Y.copy()
    labels[8] = np.inf
    history = model.fit(X, labels, batch_size=7, epochs=2, shuffle=False, verbose=0)
    return {**told(history), **held(model)}


class Broken(Blocks):
    """Blocks of which one cannot be had."""

    def __init__(self, at: int, error: BaseException | None, *arrays: Any) -> None:
        super().__init__(*arrays)
        self._at = at
        self._error = error

    def __getitem__(self, index: int) -> Any:
        if index < self._at:
            return super().__getitem__(index)
        if self._error is None:
            return tuple(np.ones((4, 9), np.float32) for _ in self._arrays)  # of another width
        raise self._error


def failing(place: Place) -> Found:
    """Trainings that fail half way; what has been learned till then is kept, and the next goes on from there."""
    model, found = _to_fail(place)
    stop = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: _fail_after(1, batch))
    attempts: dict[str, Callable[[], Any]] = {
        "data": lambda: model.fit(Broken(2, RuntimeError("a broken file"), X, Y), **_PLAINLY),
        "callback": lambda: model.fit(Blocks(X, Y), callbacks=[stop], **_PLAINLY),
        "interrupt": lambda: model.fit(Broken(1, KeyboardInterrupt(), X, Y), **_PLAINLY),
        "shape": lambda: model.fit(Broken(2, None, X, Y), **_PLAINLY),
        "evaluate": lambda: model.evaluate(Broken(2, RuntimeError("a broken file"), X, Y), verbose=0),
        "predict": lambda: model.predict(Broken(0, KeyboardInterrupt(), X), verbose=0),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except (RuntimeError, KeyboardInterrupt, ValueError):
            found.update(held(model, name))
    return {**found, **told(model.fit(X, Y, batch_size=10, **_PLAINLY)), **held(model)}


def intact(place: Place) -> Found:
    """What the trainings that fail come to, without failing."""
    model, found = _to_fail(place)
    for name, blocks in {
        "data": 2,
        "callback": 2,
        "interrupt": 1,
        "shape": 2,
        "evaluate": 0,
        "predict": 0,
    }.items():
        if blocks:
            model.fit(Blocks(X, Y, sizes=SIZES[:blocks]), **_PLAINLY)
        found.update(held(model, name))
    return {**found, **told(model.fit(X, Y, batch_size=10, **_PLAINLY)), **held(model)}


_PLAINLY: dict[str, Any] = {"shuffle": False, "verbose": 0}


def _to_fail(place: Place) -> tuple[Any, Found]:
    with place.scope():
        model = dense()
        model.compile(keras.optimizers.SGD(0.3, momentum=0.5), "mse")
    return model, {}


def _fail_after(last: int, batch: int) -> None:
    if batch == last:
        raise RuntimeError("a mistake of the user's")


def meddled(place: Place) -> Found:
    """Workers that are not the chief set variables, which is not theirs to do."""

    def meddle(epoch: int, logs: Any) -> None:
        if place.worker > 0 and epoch == 0:
            model.optimizer.learning_rate = 100.0
            model.set_weights([0 * weight for weight in model.get_weights()])

    with place.scope():
        model = dense()
        model.name = "meddled"
        model.compile(keras.optimizers.SGD(0.3), "mse")
    callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=meddle)]
    history = model.fit(X, Y, batch_size=10, epochs=3, callbacks=callbacks, **_PLAINLY)
    return {**told(history), **held(model)}


def shuffled(place: Place) -> Found:
    """Orders and initial values that are drawn at random, in one training and the next."""
    order: list[int] = []

    class Recorded(Blocks):
        def __getitem__(self, index: int) -> Any:
            order.append(index)
            return super().__getitem__(index)

    def made() -> Any:
        with place.scope():
            model = dense()
            model.compile("sgd", "mse")
        return model

    first = made()
    found = told(first.fit(Recorded(X, Y, sizes=(7,) * 3), epochs=6, verbose=0), "blocks")
    found["order"] = order[-18:]  # before them Keras draws to see what they look like
    found.update(told(first.fit(X, Y, batch_size=7, epochs=2, verbose=0), "rows"))
    second = made()
    found.update(held(second, "new"))
    found.update(told(second.fit(X, Y, batch_size=7, epochs=2, verbose=0), "second"))
    found.update({"python": random.random(), "numpy": np.random.standard_normal(3)})
    return {**found, **held(first, "first"), **held(second, "second")}


class Called(keras.callbacks.Callback):  # type: ignore[misc]
    """What a callback has been called with."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []
        self.losses: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.events.append(f"begin {batch}")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.events.append(f"end {batch}")
        self.losses.append(logs["loss"])


def turns(place: Place) -> Found:
    """Workers that take turns, until each has had all of its own; then the chief stops all."""
    with place.scope():
        counted, stopped = dense(), dense()
        for model in (counted, stopped):
            model.compile(keras.optimizers.SGD(0.1), "mse")
    data = Blocks(X, Y, sizes=(7, 7, 7))
    before = random.getstate()[1]
    called = Called()
    history = counted.fit(data, epochs=4, verbose=0, callbacks=[called])
    found = {**told(history), "iterations": np.asarray(counted.optimizer.iterations)}
    found["undisturbed"] = random.getstate()[1] == before
    found.update(called=called.events, losses=called.losses, steps=called.params["steps"])
    found["evaluated"] = [counted.evaluate(X, Y, verbose=0)]
    found["predicted"] = counted.predict(X, verbose=0)
    for _ in range(3):
        # Who is ahead trains on while the others have still to evaluate.
        counted.fit(data, shuffle=False, verbose=0)
        found["evaluated"].append(counted.evaluate(X, Y, verbose=0))

    def meet(epoch: int, logs: Any) -> None:
        # Workers that are never more than an epoch apart: whoever is first there decides what is evaluated.
        (place.directory / f"epoch-{epoch}-{place.worker}").touch()
        for worker in range(2):
            _wait_for(place.directory / f"epoch-{epoch}-{worker}")

    callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=meet)]
    options: dict[str, Any] = {"shuffle": False, "verbose": 0, "callbacks": callbacks}
    found.update(told(counted.fit(data, epochs=3, validation_data=(X, Y), **options), "met"))
    if place.worker == 0:
        counted.optimizer.learning_rate = (
            0.0  # reaches the servers with the next fit, although it evaluates first
        )
    found["stopped"] = [counted.evaluate(X, Y, verbose=0)]
    if place.worker == 1:
        _wait_for(place.directory / "has begun")
    begun = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: (place.directory / "has begun").touch()
    )
    counted.fit(data, shuffle=False, verbose=0, callbacks=[begun])
    found["stopped"].append(counted.evaluate(X, Y, verbose=0))
    counted.set_weights([0 * weight for weight in counted.get_weights()])
    found["edited"] = counted.evaluate(X, Y, verbose=0)
    # Nobody goes on before all have finished: who has pushed all of its own holds no one up.
    (place.directory / f"worker-{place.worker}").touch()
    _wait_for(place.directory / "worker-0")
    _wait_for(place.directory / "worker-1")
    once = counted.fit(X[:7], Y[:7], shuffle=False, verbose=0, callbacks=[Called()])
    found.update(told(once, "single"))
    if place.worker == 0:
        assert np.isfinite(counted.evaluate(X, Y, verbose=0)), "nobody else evaluates"

    def stop(epoch: int, logs: Any) -> None:
        if place.worker == 0 and epoch == 2:
            stopped.stop_training = True

    callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=stop)]
    history = stopped.fit(data, epochs=10**6, shuffle=False, verbose=0, callbacks=callbacks)
    return {**found, "epochs": len(history.epoch), **held(stopped)}


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"nobody made {path}"
        time.sleep(0.01)


CASES: dict[str, Case] = {
    each.__name__: each
    for each in (
        everyday,
        outputs,
        own_step,
        nested,
        averaged,
        called_back,
        untrained,
        few,
        backed_up,
        loaded,
        failing,
        intact,
        meddled,
        noisy,
        saved,
        scaled,
        shuffled,
        turns,
    )
}


def run(case: Case, place: Place, seed: int = 1) -> Found:
    """Run a case from a seed; its results as arrays."""
    keras.utils.set_random_seed(seed)
    return {what: np.asarray(value) for what, value in case(place).items()}
