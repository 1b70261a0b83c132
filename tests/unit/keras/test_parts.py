"""The parts that need no model: sums over workers, the chief's word, names, and whose callbacks run where."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np

from stratagem.engines.workers import Workers
from stratagem.keras.companions import accompanied
from stratagem.keras.control import Control
from stratagem.keras.sums import added_up, from_chief, gathered, mean_logs
from stratagem.keras.trainable import unique_paths


class Told(Workers):
    """Workers of which each has already told what it has; the last is this one."""

    cluster = None
    files = None
    is_chief = False

    def __init__(self, *others: bytes) -> None:
        self._others = others
        self.index = len(others)
        self.count = len(others) + 1

    def gather(self, array: Any) -> list[Any]:
        return [*(np.frombuffer(each, np.uint8) for each in self._others), array]

    def close(self) -> None:
        """Nothing to leave."""


def packed(*arrays: Any) -> bytes:
    return b"".join(array.tobytes() for array in arrays)


MINE: list[Any] = [np.float32(1.5), np.arange(6, dtype=np.int32).reshape(2, 3), np.zeros((0, 4), np.float32)]
THEIRS: list[Any] = [
    np.float32(2.5),
    10 * np.arange(6, dtype=np.int32).reshape(2, 3),
    np.zeros((0, 4), np.float32),
]


def test_arrays_of_all_workers() -> None:
    found = gathered(Told(packed(*THEIRS)), MINE)
    for each, expected in zip(found, [THEIRS, MINE], strict=True):
        for array, other in zip(each, expected, strict=True):
            np.testing.assert_array_equal(array, other)
            assert array.dtype == other.dtype


def test_arrays_of_the_chief() -> None:
    found = from_chief(Told(packed(*THEIRS)), MINE)
    for array, other in zip(found, THEIRS, strict=True):
        np.testing.assert_array_equal(array, other)


def test_what_workers_have_added_to_the_same_values_is_added_up() -> None:
    before = [np.float32(1), np.ones((2, 3), np.int32), MINE[2]]
    total, counts, empty = added_up(Told(packed(*THEIRS)), before, MINE)
    assert total == 1 + 1.5 + 0.5
    np.testing.assert_array_equal(counts, 11 * np.arange(6).reshape(2, 3) - 1)
    assert counts.dtype == np.int32
    assert empty.shape == (0, 4)


def test_logs_are_means_over_the_rows_of_all_workers() -> None:
    theirs = json.dumps([3, {"bias": 1.0, "each": [0.0, 4.0]}]).encode()
    found = mean_logs(Told(theirs), 1, {"bias": np.float32(5.0), "each": np.asarray([8.0, 0.0])})
    assert found["bias"] == 2.0
    np.testing.assert_array_equal(found["each"], [2.0, 3.0])
    assert mean_logs(Told(theirs), 0, {})["bias"] == 1.0
    assert mean_logs(Told(json.dumps([0, {}]).encode()), 0, {}) == {}


def test_each_fit_has_an_order_of_its_own_and_is_stopped_by_itself() -> None:
    control = Control.new()
    assert control.order_of(1) != control.order_of(2)
    assert control.order_of(1) == Control(np.array(control.values)).order_of(1)
    assert not control.has_stopped(1)
    stopped = Control(control.stopping(1))
    assert stopped.has_stopped(1)
    assert not stopped.has_stopped(2)
    assert stopped.order_of(1) == control.order_of(1)


def test_paths_that_several_variables_share_get_numbers() -> None:
    variables = [SimpleNamespace(path=path) for path in ("a/kernel", "b", "a/kernel")]
    assert unique_paths(variables) == ["a/kernel#1", "b", "a/kernel#2"]


class Writer(keras.callbacks.CSVLogger):  # type: ignore[misc]
    """A writer of the user's own making."""


def trained(is_chief: bool) -> Any:
    return SimpleNamespace(strategy=SimpleNamespace(is_chief=is_chief))


def test_only_the_chief_has_the_callbacks_that_write(tmp_path: Path) -> None:
    writers: list[Any] = [
        keras.callbacks.ModelCheckpoint("x.keras"),
        keras.callbacks.OrbaxCheckpoint(tmp_path),
        keras.callbacks.CSVLogger("x"),
        Writer("x"),
    ]
    others: list[Any] = [keras.callbacks.EarlyStopping(), keras.callbacks.LambdaCallback()]
    assert accompanied(trained(True), [*writers, *others])[1:-1] == [*writers, *others]
    assert accompanied(trained(False), [*writers, *others])[1:-1] == others


def test_who_is_not_chief_goes_back_to_its_backup_and_writes_none(tmp_path: Any) -> None:
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    (mine,) = accompanied(trained(False), [backup])[1:-1]
    assert not isinstance(mine, keras.callbacks.BackupAndRestore)
    mine.set_model(keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)]))
    mine.on_train_begin()
    mine.on_epoch_end(0)
    mine.on_train_batch_end(0)
    mine.on_train_end()
    assert not list(tmp_path.iterdir())


def test_callbacks_in_whatever_form() -> None:
    one = keras.callbacks.EarlyStopping()
    assert accompanied(trained(True), None)[1:-1] == []
    assert accompanied(trained(True), one)[1:-1] == [one]
    assert accompanied(trained(True), (one,))[1:-1] == [one]
    assert one in accompanied(trained(True), keras.callbacks.CallbackList([one]))[1:-1]
