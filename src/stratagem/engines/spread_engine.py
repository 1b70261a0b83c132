"""Variables once, cut over the devices that all have the host's memory: the CPU's own.

What computes needs them whole, and gets copies for the time of a step; each piece of a gradient is summed and each piece
of a variable updated by one device alone, so they share that work too. One compiled step does it all.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from stratagem.engines.engine import LocalEngine, Step, forward_and_back
from stratagem.engines.pieces import cut_evenly
from stratagem.engines.replicas import REPLICA_AXIS, Replicas
from stratagem.waist import Metrics, Trainable, TrainState

_AXIS = "part"
"""Another name than that of batches' rows: what is cut for storage is no replica's share."""


class SpreadEngine(LocalEngine):
    """Each variable once, in pieces; all devices compute and each updates its pieces.

    Args:
        replicas: The devices that compute, and whose memory is the host's.
    """

    def __init__(self, replicas: Replicas) -> None:
        super().__init__(replicas)
        self._stored = Mesh(np.array(replicas.devices), (_AXIS,))
        self._computed = Mesh(np.array(replicas.devices), (REPLICA_AXIS,))

    def lay_out(self, state: TrainState) -> TrainState:
        """Cut what can be cut evenly; the rest, which is small, lies whole on each."""
        laid_out: TrainState = jax.device_put(state, _places(state, self._stored))
        return laid_out

    def build(self, trainable: Trainable) -> Step:
        """One step, which takes over the memory of the state it is given."""
        whole = self.replicas.whole

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            # Some of JAX's functions want all that they are given on one and the same mesh.
            pieces = jax.lax.with_sharding_constraint(state, _places(state, self._computed))
            seen = jax.lax.with_sharding_constraint(pieces, jax.tree.map(lambda _: whole, state))
            grads, others, metrics = forward_and_back(trainable, seen, batch, seen.rng)
            after = pieces.updated(grads, others)
            after = jax.lax.with_sharding_constraint(after, _places(after, self._stored))
            return after, {**metrics, **trainable.report(others)}

        return jax.jit(step, donate_argnums=0)


def _places(state: TrainState, mesh: Mesh) -> Any:
    return jax.tree.map(lambda leaf: cut_evenly(leaf, mesh), state)
