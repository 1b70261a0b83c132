"""The programs of a synchronous step over the devices of several processes, compiled once for all of them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from stratagem.engines.contributions import contribution, updated, wide
from stratagem.engines.engine import training_program
from stratagem.engines.global_mesh import WORKER_AXIS, GlobalMesh
from stratagem.engines.replicas import Replicas
from stratagem.waist import Metrics, Trainable, TrainState

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
        uneven: `uneven(state, parts, own)`: sum what each worker has computed by itself, update everywhere.
    """

    def __init__(self, trainable: Trainable, mesh: GlobalMesh, packs: bool, shards: Mesh | None) -> None:
        self.mesh = mesh
        self._trainable = trainable
        self._packs = packs
        self.even = training_program(self._even, mesh.whole, shards)
        self.uneven = training_program(self._uneven, mesh.whole, shards)

    def seen(self, state: TrainState) -> TrainState:
        """What of a state is looked at to compute gradients."""
        read = state.flat_opt_state if self._trainable.reads_optimizer else []
        return TrainState(state.flat_params, read, state.flat_state, None, state.step, state.recipe)

    def computing(self, replicas: Replicas, index: int) -> Any:
        """`compute(seen, batch, rows)`: what one worker computes of its share, as the parts that `uneven` takes."""

        def compute(seen: TrainState, batch: Any, rows: Any) -> Any:
            shared, own, metrics = contribution(self._trainable, seen, batch, rows, index)
            return [each[None] for each in shared], own, {name: each[None] for name, each in metrics.items()}

        return jax.jit(compute, out_shardings=replicas.whole)

    def _even(self, state: TrainState, batch: Any, numbers: jax.Array) -> tuple[TrainState, Metrics]:
        def sums(seen: TrainState, batch: Any, number: jax.Array) -> Any:
            shared, own, metrics = contribution(self._trainable, seen, batch, 1.0, number[0])
            shared, metrics = self._summed((shared, metrics))
            return shared, own, metrics

        places = jax.tree.map(lambda leaf: _OF_WORKER if np.ndim(leaf) else _EVERYWHERE, batch)
        by_worker = self._by_worker(sums, (_EVERYWHERE, places, _OF_WORKER))
        shared, own, metrics = by_worker(self.seen(state), batch, numbers)
        return updated(self._trainable, state, shared, float(self.mesh.workers), own, metrics)

    def _uneven(self, state: TrainState, parts: Any, own: Any) -> tuple[TrainState, Metrics]:
        def sums(parts: Any) -> Any:
            return self._summed(jax.tree.map(lambda part: part[0], parts))

        shared, metrics, rows = self._by_worker(sums, (_OF_WORKER,))(parts)
        return updated(self._trainable, state, shared, rows, own, metrics)

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
