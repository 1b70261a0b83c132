"""Synchronous steps of several processes on one host that share out the optimizer's state among their devices.

Gradients and parameters go through shared memory; XLA knows the devices of all workers, so that the pieces of a state are
one array to whoever fetches or saves it, and an update that looks at all of an array (the norm of a gradient) finds all of it.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.devices.placing import gathered
from stratagem.engines.contributions import contributor, seen, total, updated_by
from stratagem.engines.engine import Step
from stratagem.engines.forms import doings, part_form
from stratagem.engines.global_mesh import GlobalMesh
from stratagem.engines.group_workers import GroupWorkers
from stratagem.engines.mesh_engine import lay_over
from stratagem.engines.pieces import cut_axis, cut_evenly, optimizer_in_pieces
from stratagem.engines.replicas import Replicas
from stratagem.engines.steps_under_way import StepsUnderWay
from stratagem.waist import Arrays, Metrics, Trainable, TrainState


class ShardedStateEngine:
    """Parameters on every device of every worker, and on each device a piece of the optimizer's state.

    Args:
        replicas: The devices of this worker.
        workers: The workers, on one host.
        under_way: Runs what may wait for other workers inside XLA.
    """

    is_elsewhere = False

    def __init__(self, replicas: Replicas, workers: GroupWorkers, under_way: StepsUnderWay) -> None:
        self.replicas = replicas
        self._workers = workers
        self._under_way = under_way
        self._mesh = GlobalMesh(replicas)

    def lay_out(self, state: TrainState) -> TrainState:
        """A copy of everything on every device; of the optimizer's state and of moving averages a piece."""
        return lay_over(state, optimizer_in_pieces(state, self._mesh.mesh), self._workers)

    def build(self, trainable: Trainable) -> Step:
        """Compute, sum, update the pieces, gather the parameters."""
        mesh = self._mesh.mesh

        def update(
            shared_out: tuple[Arrays, Arrays | None],
            rest: TrainState,
            summands: Sequence[Sequence[Any]],
            own: Arrays,
            names: Sequence[str],
        ) -> tuple[TrainState, Metrics]:
            state = replace(rest, flat_opt_state=shared_out[0], flat_ema=shared_out[1])
            after, metrics = updated_by(trainable, state, total(summands), own, names)
            pieces = [cut_evenly(leaf, mesh) for leaf in after.flat_params]
            places = replace(optimizer_in_pieces(after, mesh), flat_params=pieces)
            whole = jax.tree.map(lambda _: self._mesh.whole, metrics)
            placed: tuple[TrainState, Metrics] = jax.lax.with_sharding_constraint(
                (after, metrics), (places, whole)
            )
            return placed

        contribute = contributor(trainable, self.replicas, self._workers)
        update = jax.jit(update, donate_argnums=0, static_argnames="names")
        join = jax.jit(_joined, static_argnames="axes", out_shardings=self.replicas.whole)

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            doings(self._workers, part_form(batch))
            read = seen(trainable, state)
            if trainable.reads_optimizer:
                read = self._under_way.run(partial(gathered, read))
            arrays, own, names = contribute(self._mesh.local(read), batch)
            shared_out = state.flat_opt_state, state.flat_ema
            rest = replace(state, flat_opt_state=[], flat_ema=None)
            with self._workers.group.summands(arrays) as summands:
                args = shared_out, rest, [self._everywhere(each) for each in summands], self._mesh.widen(own)
                call = partial(update, *args, names=names)
                after, metrics = self._under_way.run(lambda: jax.block_until_ready(call()))
            after = replace(after, flat_params=self._gather(after.flat_params, join))
            return after, self._mesh.local(metrics)

        return step

    def _everywhere(self, summand: Sequence[Any]) -> list[Any]:
        return [self._mesh.widen(each) if isinstance(each, jax.Array) else each for each in summand]

    def _gather(self, params: Arrays, join: Any) -> Arrays:
        """Bring the pieces of parameters together on every device, through shared memory."""
        axes = tuple(cut_axis(param, self._mesh.mesh) for param in params)
        pieces = [
            [np.asarray(shard.data) for shard in sorted(param.addressable_shards, key=_device_id)]
            for param, axis in zip(params, axes, strict=True)
            if axis is not None
        ]
        with self._workers.group.gathered([piece for each in pieces for piece in each]) as parts:
            wholes = jax.block_until_ready(join(parts, axes=tuple(axis for axis in axes if axis is not None)))
        joined = iter(self._mesh.widen(wholes))
        return [param if axis is None else next(joined) for param, axis in zip(params, axes, strict=True)]


def _device_id(shard: Any) -> int:
    number: int = shard.device.id
    return number


def _joined(parts: Sequence[Sequence[Any]], axes: Sequence[int]) -> list[jax.Array]:
    """Join the pieces of arrays: of each array every worker brings as many as it has devices, one after the other."""
    each = len(parts[0]) // max(len(axes), 1)
    return [
        jnp.concatenate(
            [piece for part in parts for piece in part[place * each : (place + 1) * each]], axis=axis
        )
        for place, axis in enumerate(axes)
    ]
