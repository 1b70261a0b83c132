"""Arrays in pieces over devices, for what does not have to be whole on each."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stratagem.waist import TrainState


def cut_axis(leaf: Any, mesh: Mesh) -> int | None:
    """Return the first axis that can be cut into as many equal pieces as a mesh has devices; `None` if there is none."""
    for axis, length in enumerate(np.shape(leaf)):
        if length >= mesh.size and length % mesh.size == 0:
            return axis
    return None


def cut_evenly(leaf: Any, mesh: Mesh) -> NamedSharding:
    """Return how an array lies on a mesh in pieces, one for each device, or whole if it has no axis for that."""
    axis = cut_axis(leaf, mesh)
    return NamedSharding(
        mesh, PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, mesh.axis_names)
    )


def optimizer_in_pieces(state: TrainState, mesh: Mesh) -> TrainState:
    """Return how a state lies on a mesh whose devices share out its optimizer's state and moving averages.

    Everything else is whole on each device.
    """
    whole = NamedSharding(mesh, PartitionSpec())
    places: TrainState = jax.tree.map(lambda _: whole, state)
    averages = None if state.flat_ema is None else [cut_evenly(leaf, mesh) for leaf in state.flat_ema]
    return replace(
        places, flat_opt_state=[cut_evenly(leaf, mesh) for leaf in state.flat_opt_state], flat_ema=averages
    )
