"""Which models come under a strategy, and that Keras is afterwards what it was."""

import pickle
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras.src.trainers.trainer import Trainer

import stratagem as sg
from stratagem.errors import StrategyError
from stratagem.keras.front import TESTED

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own
X, Y = np.ones((6, 2), np.float32), np.zeros((6, 1), np.float32)


class Subclassed(keras.Model):  # type: ignore[misc]
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.layer = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.layer(x)


def sequential() -> Any:
    return keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])


def functional() -> Any:
    inputs = keras.Input((2,))
    return keras.Model(inputs, keras.layers.Dense(1)(inputs))


def nested() -> Any:
    inputs = keras.Input((2,))
    return keras.Model(inputs, sequential()(functional()(inputs)[:, None, 0] * inputs))


def cloned() -> Any:
    return keras.models.clone_model(sequential())


def remade() -> Any:
    return keras.Sequential.from_config(sequential().get_config())


KINDS = [sequential, functional, Subclassed, nested, cloned, remade]


def strategy_of(model: Any) -> Any:
    adopted = vars(model).get("_stratagem")
    return None if adopted is None else adopted.strategy


def attributes() -> list[dict[str, Any]]:
    kinds = (Trainer, keras.Model, keras.Sequential, type(functional()), keras.layers.Layer)
    return [dict(vars(kind)) for kind in kinds]


@pytest.fixture(scope="module")
def strategy() -> sg.OneDeviceStrategy:
    return sg.OneDeviceStrategy()


@pytest.mark.parametrize("make", KINDS)
def test_models_of_every_kind_are_adopted_and_stay_what_they_are(
    strategy: sg.OneDeviceStrategy, make: Callable[[], Any]
) -> None:
    plain = make()
    with strategy.scope():
        model = make()
    assert strategy_of(plain) is None
    assert strategy_of(model) is strategy
    assert type(model) is type(plain)
    model.compile("sgd", "mse")
    assert np.isfinite(model.fit(X, Y, verbose=0).history["loss"]).all()


def test_loaded_models_are_adopted(strategy: sg.OneDeviceStrategy, tmp_path: Path) -> None:
    model = functional()
    model.compile("adam", "mse")
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert strategy_of(loaded) is strategy
    loaded.fit(X, Y, verbose=0)
    loaded.save(tmp_path / "trained.keras")
    back = keras.models.load_model(tmp_path / "trained.keras")
    assert strategy_of(back) is None
    for mine, other in zip(back.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_keras_is_what_it_was_when_the_scope_is_left(strategy: sg.OneDeviceStrategy) -> None:
    before = attributes()
    with strategy.scope(), sg.OneDeviceStrategy().scope():
        sequential()
    assert attributes() == before
    with pytest.raises(KeyError), strategy.scope():
        raise KeyError
    assert attributes() == before
    assert strategy_of(sequential()) is None


def test_the_innermost_scope_counts(strategy: sg.OneDeviceStrategy) -> None:
    other = sg.OneDeviceStrategy()
    with strategy.scope():
        first = sequential()
        with other.scope():
            second = sequential()
        third = sequential()
    assert [strategy_of(each) for each in (first, second, third)] == [strategy, other, strategy]


def test_other_threads_are_not_affected(strategy: sg.OneDeviceStrategy) -> None:
    before = attributes()
    other = sg.OneDeviceStrategy()
    found: dict[str, Any] = {}
    is_open, may_close = threading.Event(), threading.Event()

    def elsewhere() -> None:
        found["without"] = strategy_of(sequential())
        with other.scope():
            is_open.set()
            assert may_close.wait(60)
            found["within"] = strategy_of(sequential())

    thread = threading.Thread(target=elsewhere)
    with strategy.scope():
        thread.start()
        assert is_open.wait(60)
        assert strategy_of(sequential()) is strategy
    # This scope is left while the other thread's is still open.
    assert strategy_of(sequential()) is None
    may_close.set()
    thread.join(60)
    assert found == {"without": None, "within": other}
    assert attributes() == before


def test_adopted_elsewhere_and_the_last_strategy_counts(strategy: sg.OneDeviceStrategy) -> None:
    model = sequential()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.set_weights([np.ones((2, 1)), np.zeros(1)])
    model.fit(X, Y, batch_size=6, verbose=0)
    assert sg.OneDeviceStrategy().adopt(model) is model
    strategy.adopt(model)
    strategy.adopt(model)
    assert strategy_of(model) is strategy
    model.fit(X, Y, batch_size=6, verbose=0)
    # By hand: the prediction is 2, its gradient 4 for each of the three; then 0.8, and 1.6.
    np.testing.assert_allclose(model.get_weights()[0], [[0.44], [0.44]], rtol=1e-5)
    assert int(model.optimizer.iterations) == 2


def test_what_is_no_model_cannot_be_adopted(strategy: sg.OneDeviceStrategy) -> None:
    with pytest.raises(StrategyError, match=r"builtins\.list cannot be adopted: a Keras 3 model can"):
        strategy.adopt([1, 2])


def test_adopted_models_can_be_pickled(strategy: sg.OneDeviceStrategy) -> None:
    with strategy.scope():
        model = sequential()
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    copied = pickle.loads(pickle.dumps(model))  # noqa: S301
    np.testing.assert_array_equal(copied.predict(X, verbose=0), model.predict(X, verbose=0))


@pytest.mark.filterwarnings("ignore")
def test_a_distribution_of_keras_is_refused(strategy: sg.OneDeviceStrategy) -> None:
    devices = keras.distribution.list_devices()
    with keras.distribution.DataParallel(devices=devices).scope():
        with pytest.raises(StrategyError, match=r"set_distribution\(None\)"), strategy.scope():
            sequential()
        with pytest.raises(StrategyError, match=r"set_distribution\(None\)"):
            strategy.adopt(Subclassed.__new__(Subclassed))


class AnyFit(Subclassed):
    def fit(self, *args: Any, **kwargs: Any) -> Any:
        self.calls = "any"
        return super().fit(*args, **kwargs)


class NarrowFit(Subclassed):
    def fit(self, x: Any, y: Any) -> Any:
        return super().fit(x, y, verbose=0)


def test_a_fit_of_the_users_own_is_called_as_always(strategy: sg.OneDeviceStrategy) -> None:
    with strategy.scope():
        model = AnyFit()
    model.compile("sgd", "mse")
    history = model.fit(X, Y, 3, verbose=0, epochs=2)
    assert model.calls == "any"
    assert np.isfinite(history.history["loss"]).all()
    assert int(model.optimizer.iterations) == 4


def test_a_fit_of_the_users_own_without_room_for_callbacks_is_refused(strategy: sg.OneDeviceStrategy) -> None:
    with strategy.scope():
        model = NarrowFit()
    model.compile("sgd", "mse")
    with pytest.raises(StrategyError, match=r"NarrowFit\.fit takes no callbacks"):
        model.fit(X, Y)


class TwoUpdates(Subclassed):
    def train_step(self, state: Any, data: Any) -> Any:
        params, others, slots, measured = state
        grads = jax.tree.map(jax.numpy.ones_like, params)
        for _ in range(2):
            params, slots = self.optimizer.stateless_apply(slots, grads, params)
        return {}, (params, others, slots, measured)


def test_a_train_step_that_updates_twice_is_refused_and_loses_nothing(strategy: sg.OneDeviceStrategy) -> None:
    with strategy.scope():
        model = TwoUpdates()
    model.compile("sgd", "mse")
    model(X)
    before = model.get_weights()
    with pytest.raises(StrategyError, match=r"TwoUpdates called self\.optimizer\.stateless_apply 2 times"):
        model.fit(X, Y, verbose=0)
    for mine, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("extra", ["keras", "test"])
def test_only_tested_versions_are_installed(extra: str) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (wanted,) = (each for each in project["optional-dependencies"][extra] if each.startswith("keras"))
    first, last = TESTED[0], TESTED[-1]
    following = f"{last.split('.')[0]}.{int(last.split('.')[1]) + 1}"
    assert wanted == f"keras>={first},<{following}"
