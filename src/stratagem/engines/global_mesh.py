"""The devices of all workers as one mesh, and how values lie over it: each worker brings its own part."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from stratagem.engines.replicas import REPLICA_AXIS, Replicas
from stratagem.errors import StrategyError

WORKER_AXIS = "worker"


class GlobalMesh:
    """The devices of all workers: a row for each worker, with its devices in their order.

    Args:
        replicas: The devices of this worker.
        rows: Those of each worker; by default, of each process.

    Attributes:
        mesh: The mesh.
        workers: How many workers there are.
        whole: How a value lies on it that is the same everywhere.
        by_worker: How one lies that has a part for each worker, whole on each of its devices.
        by_replica: How one lies that has a part for each device.

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
        """The workers' numbers, each on the devices of that worker."""
        numbers = np.arange(self.workers, dtype=np.int32)
        return jax.make_array_from_callback(numbers.shape, self.by_worker, numbers.__getitem__)

    def join(self, batch: Any) -> Any:
        """The global batch, of which this worker has a part.

        Args:
            batch: The part, on this worker's devices, or on the host if they read that. The parts of all workers have the
                same form.
        """
        return jax.tree.map(self._joined, batch)

    def _joined(self, part: Any) -> jax.Array:
        if not isinstance(part, jax.Array):
            # The host's memory may be used for the next batch before the step is over.
            part = jax.device_put(part, self._replicas.whole, may_alias=False)
        if part.ndim == 0:
            return _over(self.whole, part, ())
        is_split = len(self._replicas) == 1 or not part.is_fully_replicated
        shape = (self.workers * part.shape[0], *part.shape[1:])
        return _over(self.by_replica if is_split else self.by_worker, part, shape)

    def stack(self, parts: Any) -> Any:
        """Arrays with a part for each worker, of which this one has its own: of one row, whole on its devices."""
        return jax.tree.map(lambda part: _over(self.by_worker, part, (self.workers, *part.shape[1:])), parts)

    def local(self, value: Any) -> Any:
        """What is whole on every device, as this worker's devices have it."""
        return jax.tree.map(lambda leaf: _over(self._replicas.whole, leaf, leaf.shape), value)

    def widen(self, value: Any) -> Any:
        """What is whole on this worker's devices, as its part of a value that is whole on every device.

        The workers' values may differ, for as long as nothing is computed with them that should be the same everywhere.
        """
        return jax.tree.map(lambda leaf: _over(self.whole, leaf, leaf.shape), value)


def _by_process(replicas: Replicas) -> list[list[jax.Device]]:
    rows: dict[int, list[jax.Device]] = {}
    for device in sorted(jax.devices(replicas.devices[0].platform), key=lambda each: each.id):
        rows.setdefault(device.process_index, []).append(device)
    rows[jax.process_index()] = list(replicas.devices)
    return [rows[worker] for worker in sorted(rows)]


def _over(sharding: Sharding, part: jax.Array, shape: Sequence[int]) -> jax.Array:
    """An array of this worker's pieces, seen as lying over other devices besides, or over fewer; nothing is copied."""
    pieces = [shard.data for shard in part.addressable_shards]
    return jax.make_array_from_single_device_arrays(tuple(shape), sharding, pieces)
