"""Synchronous steps of several processes on one host: each computes, and their group sums through shared memory.

Every worker weighs what it contributes with its number of rows, so the sums are those over the global batch, however
unevenly its rows are spread. A worker without a row contributes zeros, and computes nothing.

The other workers' contributions are arguments of the compiled update, which adds them up where they lie: nothing is copied.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.cluster import ClusterConfig
from stratagem.collectives import GroupOptions
from stratagem.devices import share_host, visible_gpus
from stratagem.devices.global_arrays import gather
from stratagem.engines.contributions import (
    apply_totals,
    contributor,
    gather_forms,
    share_form,
    sum_in_order,
)
from stratagem.engines.engine import Engine, Step, gradient_inputs
from stratagem.engines.group_workers import GroupWorkers
from stratagem.engines.jax_distributed import connect_devices
from stratagem.engines.mesh_engine import MeshEngine
from stratagem.engines.meshes import GlobalMesh, lay_over, optimizer_in_shards, shard_axis, shard_evenly
from stratagem.engines.replicas import Replicas
from stratagem.engines.steps_under_way import StepsUnderWay
from stratagem.engines.workers import Workers
from stratagem.environment import current
from stratagem.errors import StrategyError
from stratagem.runtime import Server
from stratagem.waist import Arrays, Metrics, Trainable, TrainState

Communication = Literal["auto", "ring", "nccl", "shm"]
_log = logging.getLogger("stratagem")


def multi_worker_parts(
    config: ClusterConfig, communication: Communication, options: GroupOptions, shard_state: bool
) -> tuple[Engine, Workers]:
    """Return the engine and the workers of a strategy of several workers, after choosing how they communicate."""
    share_host(config)
    server = Server(config.cluster, config.job_name, config.task_index, announce_devices=False)
    workers = GroupWorkers(config, server, options)
    choice, why = _choose(communication, workers)
    _log.info("MultiWorkerMirroredStrategy: communication %s, %s", choice, why)
    engine: Engine
    if choice == "shm" and not shard_state:
        engine = MultiWorkerEngine(Replicas.named(None), workers)
    else:
        replicas, under_way = connect_devices(workers, options, lambda: Replicas.named(None))
        engine = (
            ShardedStateEngine(replicas, workers, under_way)
            if choice == "shm"
            else MeshEngine(replicas, workers, under_way, shard_state)
        )
    server.announce_devices()
    return engine, workers


def _choose(communication: Communication, workers: GroupWorkers) -> tuple[str, str]:
    if communication != "auto":
        if communication == "shm" and not workers.are_on_one_host():
            raise StrategyError(
                "communication='shm' needs all workers on one host, and shared memory not turned off (STRATAGEM_SHM); not "
                f"all of {', '.join(workers.group.tasks)} reach each other so. Use 'ring', or 'auto', which chooses"
            )
        return communication, "as asked for"
    if visible_gpus(current()):
        return "nccl", "since there are GPUs"
    if workers.are_on_one_host():
        return "shm", "since all workers are on this host"
    return "ring", "since the workers are on several hosts without GPUs"


class MultiWorkerEngine(Engine):
    """Variables on every device of every worker; the group of workers sums contributions."""

    def __init__(self, replicas: Replicas, workers: GroupWorkers) -> None:
        super().__init__(replicas)
        self._workers = workers

    def lay_out(self, state: TrainState) -> TrainState:
        laid_out: TrainState = self.replicas.replicate(state)
        return laid_out.at_home(self._workers)

    def build(self, trainable: Trainable) -> Step:
        def update(
            state: TrainState, summands: Sequence[Sequence[Any]], own: Arrays, names: Sequence[str]
        ) -> tuple[TrainState, Metrics]:
            return apply_totals(trainable, state, sum_in_order(summands), own, names)

        contribute = contributor(trainable, self.replicas, self._workers)
        update = jax.jit(update, donate_argnums=0, out_shardings=self.replicas.whole, static_argnames="names")

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            arrays, own, names = contribute(state, batch)
            with self._workers.group.summands(arrays) as summands:
                after: tuple[TrainState, Metrics] = update(state, summands, own, names=names)
                # Some summands lie in the memory of other workers, who want it back.
                jax.block_until_ready(after)
            return after

        return step


class ShardedStateEngine(Engine):
    """Parameters on every device of every worker, and on each device a shard of the optimizer's state.

    XLA knows the devices of all workers, so that the shards of a state are one array to code that fetches or saves it, and an
    update that reads all of an array (the norm of a gradient) finds all of it.

    Args:
        replicas: The devices of this worker.
        workers: The workers, on one host.
        under_way: Runs calls that may wait for other workers inside XLA.
    """

    def __init__(self, replicas: Replicas, workers: GroupWorkers, under_way: StepsUnderWay) -> None:
        super().__init__(replicas)
        self._workers = workers
        self._under_way = under_way
        self._mesh = GlobalMesh(replicas)

    def lay_out(self, state: TrainState) -> TrainState:
        return lay_over(state, optimizer_in_shards(state, self._mesh.mesh), self._workers)

    def build(self, trainable: Trainable) -> Step:
        mesh = self._mesh.mesh

        def update(
            shards: tuple[Arrays, Arrays | None],
            rest: TrainState,
            summands: Sequence[Sequence[Any]],
            own: Arrays,
            names: Sequence[str],
        ) -> tuple[TrainState, Metrics]:
            state = replace(rest, flat_opt_state=shards[0], flat_ema=shards[1])
            after, metrics = apply_totals(trainable, state, sum_in_order(summands), own, names)
            params = [shard_evenly(leaf, mesh) for leaf in after.flat_params]
            shardings = replace(optimizer_in_shards(after, mesh), flat_params=params)
            whole = jax.tree.map(lambda _: self._mesh.whole, metrics)
            result: tuple[TrainState, Metrics] = jax.lax.with_sharding_constraint(
                (after, metrics), (shardings, whole)
            )
            return result

        contribute = contributor(trainable, self.replicas, self._workers)
        update = jax.jit(update, donate_argnums=0, static_argnames="names")
        join = jax.jit(_join, static_argnames="axes", out_shardings=self.replicas.whole)

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            gather_forms(self._workers, share_form(batch))
            inputs = gradient_inputs(trainable, state)
            if trainable.reads_optimizer:
                inputs = self._under_way.run(partial(gather, inputs))
            arrays, own, names = contribute(self._mesh.local(inputs), batch)
            shards = state.flat_opt_state, state.flat_ema
            rest = replace(state, flat_opt_state=[], flat_ema=None)
            with self._workers.group.summands(arrays) as summands:
                args = shards, rest, [self._widen(each) for each in summands], self._mesh.widen(own)
                call = partial(update, *args, names=names)
                after, metrics = self._under_way.run(lambda: jax.block_until_ready(call()))
            after = replace(after, flat_params=self._gather(after.flat_params, join))
            return after, self._mesh.local(metrics)

        return step

    def _widen(self, summand: Sequence[Any]) -> list[Any]:
        return [self._mesh.widen(each) if isinstance(each, jax.Array) else each for each in summand]

    def _gather(self, params: Arrays, join: Any) -> Arrays:
        """Bring the shards of parameters together on every device, through shared memory."""
        axes = tuple(shard_axis(param, self._mesh.mesh) for param in params)
        shards = [
            np.asarray(shard.data)
            for param, axis in zip(params, axes, strict=True)
            if axis is not None
            for shard in sorted(param.addressable_shards, key=_device_id)
        ]
        with self._workers.group.gather_views(shards) as parts:
            wholes = jax.block_until_ready(join(parts, axes=tuple(axis for axis in axes if axis is not None)))
        joined = iter(self._mesh.widen(wholes))
        return [param if axis is None else next(joined) for param, axis in zip(params, axes, strict=True)]


def _device_id(shard: Any) -> int:
    number: int = shard.device.id
    return number


def _join(parts: Sequence[Sequence[Any]], axes: Sequence[int]) -> list[jax.Array]:
    """Join the shards of arrays: each worker brings as many of each array as it has devices, one after the other."""
    count = len(parts[0]) // max(len(axes), 1)
    return [
        jnp.concatenate(
            [shard for part in parts for shard in part[number * count : (number + 1) * count]], axis=axis
        )
        for number, axis in enumerate(axes)
    ]
