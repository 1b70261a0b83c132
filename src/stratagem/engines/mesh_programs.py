"""The programs of a synchronous step over the devices of several processes, compiled once for all of them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from stratagem.engines.contributions import contribution, seen, updated, updated_by, wide
from stratagem.engines.engine import training_program
from stratagem.engines.global_mesh import WORKER_AXIS, GlobalMesh
from stratagem.waist import Arrays, Metrics, Trainable, TrainState

_EVERYWHERE, _OF_WORKER = PartitionSpec(), PartitionSpec(WORKER_AXIS)


class MeshPrograms:
    """What a model's steps are made of.

    Args:
        trainable: The model.
        mesh: The devices of all workers.
        packs: Whether what is summed goes through the network in one piece.
        shards: The devices among which the optimizer's state is shared out, if it is.

    Attributes:
        even: `even(state, batch, numbers)`: compute worker by worker, sum over all, update everywhere.
        uneven: `uneven(state, parts, own, names=names)`: sum what each worker has contributed, with the names of its metrics,
            and update everywhere.
    """

    def __init__(self, trainable: Trainable, mesh: GlobalMesh, packs: bool, shards: Mesh | None) -> None:
        self.mesh = mesh
        self._trainable = trainable
        self._packs = packs
        self.even = training_program(self._even, mesh.whole, shards)
        self.uneven = training_program(self._uneven, mesh.whole, shards, static_argnames="names")

    def seen(self, state: TrainState) -> TrainState:
        """Return the part of a state that computing gradients reads."""
        return seen(self._trainable, state)

    def _even(self, state: TrainState, batch: Any, numbers: jax.Array) -> tuple[TrainState, Metrics]:
        def sums(state: TrainState, batch: Any, number: jax.Array) -> Any:
            shared, own, metrics = contribution(self._trainable, state, batch, 1.0, number[0])
            shared, metrics = self._summed((shared, metrics))
            return shared, own, metrics

        places = jax.tree.map(lambda leaf: _OF_WORKER if np.ndim(leaf) else _EVERYWHERE, batch)
        by_worker = self._by_worker(sums, (_EVERYWHERE, places, _OF_WORKER))
        shared, own, metrics = by_worker(self.seen(state), batch, numbers)
        return updated(self._trainable, state, shared, float(self.mesh.workers), own, metrics)

    def _uneven(
        self, state: TrainState, parts: Any, own: Arrays, names: Sequence[str]
    ) -> tuple[TrainState, Metrics]:
        def sums(parts: Any) -> Any:
            return self._summed([part[0] for part in parts])

        totals = self._by_worker(sums, (_OF_WORKER,))(parts)
        return updated_by(self._trainable, state, totals, own, names)

    def _by_worker(self, function: Callable[..., Any], places: tuple[Any, ...]) -> Callable[..., Any]:
        """A function that each worker computes by itself, on all its devices, and whose results are not in parts."""
        return jax.shard_map(
            function,
            mesh=self.mesh.mesh,
            in_specs=places,
            out_specs=_EVERYWHERE,
            axis_names={WORKER_AXIS},
            check_vma=False,  # state of a worker's own is not the same on all of them
        )

    def _summed(self, value: Any) -> Any:
        """The sums over all workers; inside `_by_worker`."""
        leaves, tree = jax.tree.flatten(value)
        leaves = [wide(leaf) for leaf in leaves]
        total = partial(jax.lax.psum, axis_name=WORKER_AXIS)
        return jax.tree.unflatten(tree, packed(total, leaves) if self._packs else total(leaves))


def packed(function: Callable[[jax.Array], jax.Array], arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """What an elementwise function makes of arrays, which goes over those of one type all at once; traceable."""
    # Without a barrier XLA would compute the gradients again inside the concatenation, element by element.
    arrays = jax.lax.optimization_barrier(list(arrays))
    places: dict[Any, list[int]] = {}
    for place, array in enumerate(arrays):
        places.setdefault(array.dtype, []).append(place)
    found: list[Any] = [None] * len(arrays)
    for some in places.values():
        pieces = function(jnp.concatenate([arrays[place].reshape(-1) for place in some]))
        ends = np.cumsum([arrays[place].size for place in some])
        for place, piece in zip(some, jnp.split(pieces, ends[:-1]), strict=True):
            found[place] = piece.reshape(arrays[place].shape)
    return found
