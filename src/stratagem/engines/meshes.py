"""The devices of all workers as one mesh, and how values are sharded over a mesh."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from stratagem.devices.global_arrays import local_copy, put
from stratagem.engines.replicas import REPLICA_AXIS, Replicas
from stratagem.errors import StrategyError
from stratagem.waist import TrainState
from stratagem.waist.home import WorkerHome

WORKER_AXIS = "worker"


class GlobalMesh:
    """The devices of all workers: a row for each worker, with its devices in their order.

    Args:
        replicas: The devices of this worker.
        rows: The devices of each worker; by default, of each process.

    Attributes:
        mesh: The mesh.
        workers: The number of workers.
        whole: The sharding of a value that is the same everywhere.
        by_worker: The sharding of a value with a part for each worker, whole on each of its devices.
        by_replica: The sharding of a value with a part for each device.

    Raises:
        StrategyError: The workers do not have the same number of devices.
    """

    def __init__(self, replicas: Replicas, rows: Sequence[Sequence[jax.Device]] | None = None) -> None:
        rows = _by_process(replicas) if rows is None else rows
        if len({len(row) for row in rows}) > 1:
            have = ", ".join(f"worker {worker} has {len(row)}" for worker, row in enumerate(rows))
            raise StrategyError(
                f"the workers have different numbers of devices: {have}. A compiled step over all of them needs the same "
                "number on each: limit the larger ones (sg.configure(visible_devices=...), CUDA_VISIBLE_DEVICES, stratagem "
                "run --devices-per-worker)"
            )
        self.mesh = Mesh(np.array(rows), (WORKER_AXIS, REPLICA_AXIS))
        self.workers = len(rows)
        self.whole = NamedSharding(self.mesh, PartitionSpec())
        self.by_worker = NamedSharding(self.mesh, PartitionSpec(WORKER_AXIS))
        self.by_replica = NamedSharding(self.mesh, PartitionSpec((WORKER_AXIS, REPLICA_AXIS)))
        self._replicas = replicas

    def numbers(self) -> jax.Array:
        """Return the workers' numbers, each on the devices of that worker."""
        numbers = np.arange(self.workers, dtype=np.int32)
        return jax.make_array_from_callback(numbers.shape, self.by_worker, numbers.__getitem__)

    def join(self, batch: Any) -> Any:
        """Return the global batch of which this worker has a share; nothing is sent.

        Args:
            batch: The share, on this worker's devices, or on the host if they read that. The shares of all workers have
                the same form.
        """
        return jax.tree.map(self._join_share, batch)

    def _join_share(self, share: Any) -> jax.Array:
        if not isinstance(share, jax.Array):
            # The host's memory may be used for the next batch before the step is over.
            share = jax.device_put(share, self._replicas.whole, may_alias=False)
        if share.ndim == 0:
            return _reshard(share, (), self.whole)
        is_split = len(self._replicas) == 1 or not share.is_fully_replicated
        shape = (self.workers * share.shape[0], *share.shape[1:])
        return _reshard(share, shape, self.by_replica if is_split else self.by_worker)

    def stack(self, parts: Any) -> Any:
        """Return arrays with one row for each worker, of which this one has its own, whole on its devices."""
        return jax.tree.map(lambda row: _reshard(row, (self.workers, *row.shape[1:]), self.by_worker), parts)

    def local(self, value: Any) -> Any:
        """Return a value that is whole on every device as one that is whole on this worker's devices."""
        return jax.tree.map(lambda leaf: _reshard(leaf, leaf.shape, self._replicas.whole), value)

    def widen(self, value: Any) -> Any:
        """Return a value that is whole on this worker's devices as its part of one that is whole on every device.

        The workers' values may differ, as long as nothing is computed with them that should be the same everywhere.
        """
        return jax.tree.map(lambda leaf: _reshard(leaf, leaf.shape, self.whole), value)


def _by_process(replicas: Replicas) -> list[list[jax.Device]]:
    rows: dict[int, list[jax.Device]] = {}
    for device in sorted(jax.devices(replicas.devices[0].platform), key=lambda each: each.id):
        rows.setdefault(device.process_index, []).append(device)
    rows[jax.process_index()] = list(replicas.devices)
    return [rows[worker] for worker in sorted(rows)]


def _reshard(array: jax.Array, shape: Sequence[int], sharding: Sharding) -> jax.Array:
    """Return this worker's shards as part of an array over more devices, or over fewer; nothing is copied."""
    shards = [shard.data for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(tuple(shape), sharding, shards)


def shard_axis(leaf: Any, mesh: Mesh) -> int | None:
    """Return the first axis of an array that divides evenly over all devices of a mesh; `None` if there is none."""
    for axis, length in enumerate(np.shape(leaf)):
        if length >= mesh.size and length % mesh.size == 0:
            return axis
    return None


def shard_evenly(leaf: Any, mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array over all devices of a mesh; whole on each if no axis divides evenly."""
    axis = shard_axis(leaf, mesh)
    return NamedSharding(
        mesh, PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, mesh.axis_names)
    )


def optimizer_in_shards(state: TrainState, mesh: Mesh) -> TrainState:
    """Return the shardings of a state whose optimizer state and moving averages the devices of a mesh share out.

    Everything else is whole on each device.
    """
    whole = NamedSharding(mesh, PartitionSpec())
    shardings: TrainState = jax.tree.map(lambda _: whole, state)
    averages = None if state.flat_ema is None else [shard_evenly(leaf, mesh) for leaf in state.flat_ema]
    opt_state = [shard_evenly(leaf, mesh) for leaf in state.flat_opt_state]
    return replace(shardings, flat_opt_state=opt_state, flat_ema=averages)


def lay_over(state: TrainState, shardings: TrainState, home: WorkerHome) -> TrainState:
    """Put each array of a state where it belongs on the devices of all workers, which train it together."""
    laid_out: TrainState = jax.tree.map(_put, state, shardings)
    return laid_out.at_home(home)


def _put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    is_there = isinstance(leaf, jax.Array) and leaf.sharding == sharding
    return leaf if is_there else put(local_copy(leaf), sharding)
