"""The callbacks that go with every `fit`, and which of the user's run on a worker that is not the chief."""

from collections.abc import Iterable
from typing import Any, Protocol

import keras


class Trained(Protocol):
    """What is told of the course of a training."""

    strategy: Any

    def begin_training(self) -> None:
        """Before the first epoch."""
        ...

    def begin_epoch(self) -> None:
        """Before each epoch, when the user's callbacks have been called."""
        ...

    def end_epoch(self) -> None:
        """After each epoch, when the user's callbacks have been called."""
        ...


class _First(keras.callbacks.Callback):
    """Goes before the user's callbacks."""

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self._trained = trained

    def on_train_begin(self, logs: Any = None) -> None:
        self._trained.begin_training()


class _Last(keras.callbacks.Callback):
    """Comes after the user's callbacks."""

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self._trained = trained

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._trained.begin_epoch()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._trained.end_epoch()


class _RestoreOnly(keras.callbacks.Callback):
    """Goes back to the chief's backup when training begins, and writes none itself."""

    def __init__(self, backup: keras.callbacks.BackupAndRestore) -> None:
        super().__init__()
        self._backup = backup

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._backup.set_model(model)

    def on_train_begin(self, logs: Any = None) -> None:
        self._backup.on_train_begin(logs)


_CHECKPOINTS = (keras.callbacks.ModelCheckpoint, keras.callbacks.OrbaxCheckpoint)
_WRITERS = (
    *_CHECKPOINTS,
    keras.callbacks.TensorBoard,
    keras.callbacks.CSVLogger,
    keras.callbacks.ProgbarLogger,
)


def accompanied(trained: Trained, callbacks: Any) -> list[Any]:
    """The user's callbacks, as far as they are this worker's, between ours."""
    given = listed(callbacks)
    if not trained.strategy.is_chief:
        given = [_reduced(each) for each in given if not isinstance(each, _WRITERS)]
    return [_First(trained), *given, _Last(trained)]


def leave_files(given: list[Any]) -> bool:
    """Whether some of the user's callbacks leave files behind that a script may read afterwards, or take them away."""
    return any(isinstance(each, (*_CHECKPOINTS, keras.callbacks.BackupAndRestore)) for each in given)


def listed(callbacks: Any) -> list[Any]:
    """The user's callbacks, in whatever way they are given."""
    if callbacks is None:
        return []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]


def _reduced(callback: Any) -> Any:
    return _RestoreOnly(callback) if isinstance(callback, keras.callbacks.BackupAndRestore) else callback
