"""Variables once, cut over the devices that all have the host's memory: the CPU's own.

What computes needs them whole, and gets copies for the time of a step; each piece of a gradient is summed and each piece
of a variable updated by one device alone, so they share that work too. One compiled step does it all.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stratagem.strategies.engines import Step, forward_and_back
from stratagem.strategies.replicas import Replicas
from stratagem.waist import Metrics, Trainable, TrainState

_AXIS = "part"
"""Another name than that of batches' rows: what is cut for storage is no replica's share."""


class SpreadEngine:
    """Each variable once, in pieces; all devices compute and each updates its pieces.

    Args:
        replicas: The devices that compute, and whose memory is the host's.
    """

    is_elsewhere = False

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas
        self._mesh = Mesh(np.array(replicas.devices), (_AXIS,))

    def lay_out(self, state: TrainState) -> TrainState:
        """Cut what can be cut evenly; the rest, which is small, lies whole on each."""
        laid_out: TrainState = jax.device_put(state, self._places(state))
        return laid_out

    def build(self, trainable: Trainable) -> Step:
        """One step, which takes over the memory of the state it is given."""
        whole = self.replicas.whole

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            seen = jax.lax.with_sharding_constraint(state, jax.tree.map(lambda _: whole, state))
            grads, others, metrics = forward_and_back(trainable, seen, batch, state.rng)
            after = state.updated(grads, others)
            after = jax.lax.with_sharding_constraint(after, self._places(after))
            return after, {**metrics, **trainable.report(others)}

        return jax.jit(step, donate_argnums=0)

    def _places(self, state: TrainState) -> Any:
        return jax.tree.map(self._place, state)

    def _place(self, leaf: Any) -> NamedSharding:
        count = len(self.replicas)
        for axis, length in enumerate(np.shape(leaf)):
            if length >= count and length % count == 0:
                return NamedSharding(self._mesh, PartitionSpec(*[None] * axis, _AXIS))
        return NamedSharding(self._mesh, PartitionSpec())
