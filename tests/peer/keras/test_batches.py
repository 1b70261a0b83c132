"""Batches and callbacks of other frameworks, under a strategy of one device: the results are those of plain Keras."""

from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow
import torch

import stratagem as sg
from unit.keras.beside_plain_keras import OPTIONS, check_batches
from unit.keras.cases import X, Y, dense

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own


def from_torch() -> Any:
    rows = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    return torch.utils.data.DataLoader(rows, batch_size=7)


def from_tensorflow() -> Any:
    return tensorflow.data.Dataset.from_tensor_slices((X, Y)).batch(7)


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
@pytest.mark.parametrize("make", [from_torch, from_tensorflow])
def test_batches_of_every_make(make: Any) -> None:
    check_batches(sg.OneDeviceStrategy(), make)


def test_tensorboard_has_the_history(tmp_path: Path) -> None:
    with sg.OneDeviceStrategy().scope():
        model = dense()
    model.compile("sgd", "mse")
    model.fit(X, Y, callbacks=[keras.callbacks.TensorBoard(tmp_path)], **OPTIONS)
    assert list(tmp_path.glob("train/events*"))
