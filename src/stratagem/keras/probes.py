"""What lets a model's own `train_step`, which knows weights only, also tell the gradients of looked-up rows.

While it is traced, each embedding by row has one weight more: the probe of its look-ups. To these the gradients of the
rows come back, and there they are taken; see `stratagem.tables.lookups`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from stratagem.keras.embedding import RowLayer
from stratagem.waist import Arrays


class Probes:
    """The probes of some layers.

    Args:
        layers: The layers.
    """

    def __init__(self, layers: Sequence[RowLayer]) -> None:
        self._probes = [
            (layer, keras.Variable(np.zeros(()), dtype=layer.variable_dtype, name="probe"))
            for layer in layers
        ]

    @contextmanager
    def along(self, model: Any, params: Arrays) -> Iterator[tuple[Arrays, list[int]]]:
        """For the block, let layers have their probes.

        Yields:
            The values of all weights that the model has then, and the places of its own among them.
        """
        if not self._probes:
            yield params, list(range(len(params)))
            return
        own = {id(each) for each in model.trainable_variables}
        for layer, probe in self._probes:
            # Keras lets nobody add weights to a layer that is built.
            layer._trainable_variables.append(probe)
            layer.look_up_with(probe)
        try:
            variables = model.trainable_variables
            places = [place for place, each in enumerate(variables) if id(each) in own]
            values = [None if id(each) in own else each.value for each in variables]
            for place, value in zip(places, params, strict=True):
                values[place] = value
            yield values, places
        finally:
            for layer, _ in self._probes:
                layer._trainable_variables.pop()
                layer.look_up_with(None)
