"""Sums between processes by XLA itself: NCCL on GPUs, a gloo ring on CPUs, over `jax.distributed`."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class XlaReducer:
    """Sums arrays over all processes of `jax.distributed`, which has been started.

    The first device of each process takes part.

    Args:
        packs_on_host: Whether all arrays of one dtype go in one buffer of the host, as is best on CPUs, where every
            all-reduce costs a round of messages. Otherwise they stay on the device, and XLA joins them itself.
    """

    def __init__(self, packs_on_host: bool) -> None:
        self._packs_on_host = packs_on_host
        firsts: dict[int, jax.Device] = {}
        for device in sorted(jax.devices(), key=lambda each: each.id):
            firsts.setdefault(device.process_index, device)
        mesh = Mesh(np.array([firsts[index] for index in sorted(firsts)]), ("process",))
        self._device = firsts[jax.process_index()]
        self._split = NamedSharding(mesh, PartitionSpec("process"))
        self._sum = jax.jit(
            lambda parts: [_summed(part) for part in parts],
            out_shardings=NamedSharding(mesh, PartitionSpec()),
        )

    def all_reduce(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Each array summed over all processes: host arrays, or arrays on the device that takes part."""
        if not self._packs_on_host:
            return self._sum_parts([jnp.asarray(array) for array in arrays])
        host = [np.asarray(array) for array in arrays]
        order: dict[Any, list[int]] = {}
        for index, array in enumerate(host):
            order.setdefault(array.dtype, []).append(index)
        packed = [
            np.concatenate([host[index].reshape(-1) for index in indices]) for indices in order.values()
        ]
        found: list[Any] = [None] * len(host)
        for indices, total in zip(order.values(), self._sum_parts(packed), strict=True):
            ends = np.cumsum([host[index].size for index in indices])
            for index, part in zip(indices, np.split(np.asarray(total), ends[:-1]), strict=True):
                found[index] = part.reshape(host[index].shape)
        return found

    def _sum_parts(self, arrays: Sequence[Any]) -> list[jax.Array]:
        parts = [
            jax.make_array_from_single_device_arrays(
                (len(self._split.device_set), *array.shape),
                self._split,
                [jax.device_put(_local(array)[None], self._device)],
            )
            for array in arrays
        ]
        return [total.addressable_data(0) for total in self._sum(parts)]


def _local(array: Any) -> Any:
    """The copy of an array on one device."""
    return array.addressable_data(0) if isinstance(array, jax.Array) else array


def _summed(part: jax.Array) -> jax.Array:
    """The sum over processes; half precision is summed in single, as between hosts it is summed once per process."""
    wide = (
        jnp.promote_types(part.dtype, jnp.float32) if jnp.issubdtype(part.dtype, jnp.floating) else part.dtype
    )
    return part.astype(wide).sum(axis=0).astype(part.dtype)
