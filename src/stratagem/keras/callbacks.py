"""The callbacks of a `fit`: those of the user that run on this worker, between ours."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
from keras.callbacks import BackupAndRestore, LambdaCallback

_CHECKPOINTS = (keras.callbacks.ModelCheckpoint, keras.callbacks.OrbaxCheckpoint)
_WRITERS = (
    *_CHECKPOINTS,
    keras.callbacks.TensorBoard,
    keras.callbacks.CSVLogger,
    keras.callbacks.ProgbarLogger,
)


class _RestoreOnly(keras.callbacks.Callback):
    """Restores the chief's backup when training begins, and writes none itself."""

    def __init__(self, backup: BackupAndRestore) -> None:
        super().__init__()
        self._backup = backup

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._backup.set_model(model)

    def on_train_begin(self, logs: Any = None) -> None:
        self._backup.on_train_begin(logs)


def worker_callbacks(
    callbacks: list[Any],
    *,
    is_chief: bool,
    begin_training: Callable[[], None],
    begin_epoch: Callable[[], None],
    end_epoch: Callable[[], None],
) -> list[Any]:
    """Return the callbacks of a `fit` on this worker: the user's without those that only the chief runs, and ours.

    Args:
        callbacks: The user's.
        is_chief: Whether this worker is the chief, which runs them all.
        begin_training: Called before the user's callbacks learn that training begins.
        begin_epoch: Called after the user's callbacks at the beginning of each epoch.
        end_epoch: Called after the user's callbacks at the end of each epoch.
    """
    if not is_chief:
        callbacks = [
            _RestoreOnly(each) if isinstance(each, BackupAndRestore) else each
            for each in callbacks
            if not isinstance(each, _WRITERS)
        ]
    first = LambdaCallback(on_train_begin=lambda logs: begin_training())
    last = LambdaCallback(
        on_epoch_begin=lambda epoch, logs: begin_epoch(), on_epoch_end=lambda epoch, logs: end_epoch()
    )
    return [first, *callbacks, last]


def change_files(callbacks: list[Any]) -> bool:
    """Return whether some callbacks write or remove files that a script may read after `fit`."""
    return any(isinstance(each, (*_CHECKPOINTS, BackupAndRestore)) for each in callbacks)


def as_list(callbacks: Any) -> list[Any]:
    """Return the user's callbacks as a list, in whatever form `fit` was given them."""
    if callbacks is None:
        return []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
