"""Which of the user's callbacks run on which worker."""

from pathlib import Path
from typing import Any

import keras

from stratagem.keras.callbacks import as_list, worker_callbacks


class Writer(keras.callbacks.CSVLogger):  # type: ignore[misc]
    """A writer of the user's own making."""


def users_callbacks(callbacks: Any, is_chief: bool) -> list[Any]:
    """Those of the user's callbacks that run on a worker."""
    calls = dict.fromkeys(("begin_training", "begin_epoch", "end_epoch"), lambda: None)
    return worker_callbacks(as_list(callbacks), is_chief=is_chief, **calls)[1:-1]


def test_only_the_chief_has_the_callbacks_that_write(tmp_path: Path) -> None:
    writers: list[Any] = [
        keras.callbacks.ModelCheckpoint("x.keras"),
        keras.callbacks.OrbaxCheckpoint(tmp_path),
        keras.callbacks.CSVLogger("x"),
        Writer("x"),
    ]
    others: list[Any] = [keras.callbacks.EarlyStopping(), keras.callbacks.LambdaCallback()]
    assert users_callbacks([*writers, *others], is_chief=True) == [*writers, *others]
    assert users_callbacks([*writers, *others], is_chief=False) == others


def test_who_is_not_chief_goes_back_to_its_backup_and_writes_none(tmp_path: Any) -> None:
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    (mine,) = users_callbacks([backup], is_chief=False)
    assert not isinstance(mine, keras.callbacks.BackupAndRestore)
    mine.set_model(keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)]))
    mine.on_train_begin()
    mine.on_epoch_end(0)
    mine.on_train_batch_end(0)
    mine.on_train_end()
    assert not list(tmp_path.iterdir())


def test_callbacks_in_whatever_form() -> None:
    one = keras.callbacks.EarlyStopping()
    assert users_callbacks(None, is_chief=True) == []
    assert users_callbacks(one, is_chief=True) == [one]
    assert users_callbacks((one,), is_chief=True) == [one]
    assert one in users_callbacks(keras.callbacks.CallbackList([one]), is_chief=True)
