"""Arrays in pieces over devices, for what does not have to be whole on each."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stratagem.waist import TrainState


def cut_evenly(leaf: Any, mesh: Mesh) -> NamedSharding:
    """In as many pieces as a mesh has devices, along the first axis that can be cut evenly; whole if there is none."""
    for axis, length in enumerate(np.shape(leaf)):
        if length >= mesh.size and length % mesh.size == 0:
            return NamedSharding(mesh, PartitionSpec(*[None] * axis, mesh.axis_names))
    return NamedSharding(mesh, PartitionSpec())


def optimizer_in_pieces(state: TrainState, mesh: Mesh) -> TrainState:
    """How a state lies on a mesh whose devices share its optimizer's state out among them: the rest is whole on each."""
    whole = NamedSharding(mesh, PartitionSpec())
    places: TrainState = jax.tree.map(lambda _: whole, state)
    return replace(places, flat_opt_state=[cut_evenly(leaf, mesh) for leaf in state.flat_opt_state])
