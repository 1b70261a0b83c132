"""Arrays over devices of several processes. Each process supplies its own part, and asks no other for its part."""

from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

T = TypeVar("T")


def put(value: Any, sharding: Sharding) -> jax.Array:
    """Return a new array with a value that every process of the sharding has.

    `jax.device_put` would ask the other processes whether theirs is the same, and wait for those that do not come.
    """
    if sharding.is_fully_addressable:
        array: jax.Array = jax.device_put(value, sharding, may_alias=False)
        return array
    if sharding.is_fully_replicated:
        parts = [jax.device_put(value, device, may_alias=False) for device in sharding.addressable_devices]
    else:
        host = np.asarray(value)
        indices = sharding.addressable_devices_indices_map(host.shape)
        parts = [jax.device_put(host[index], device, may_alias=False) for device, index in indices.items()]
    return jax.make_array_from_single_device_arrays(np.shape(value), sharding, parts)


def local_copy(array: Any) -> Any:
    """Return the copy on this process's first device of an array that is whole on devices of several processes.

    Anything else is returned as it is.
    """
    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer):
        return array
    if array.is_fully_addressable or not array.is_fully_replicated:
        return array
    return array.addressable_data(0)


def is_in_reach(value: Any) -> bool:
    """Return whether this process's devices have all of every array in a value."""
    return all(leaf.is_fully_replicated or leaf.is_fully_addressable for leaf in _arrays(value))


def gather(value: T) -> T:
    """Return a value whole on every device, where parts of it lie with other processes. All processes call this together."""
    if is_in_reach(value):
        return value
    mesh = next(leaf.sharding.mesh for leaf in _arrays(value) if isinstance(leaf.sharding, NamedSharding))
    whole: T = jax.jit(lambda each: each, out_shardings=NamedSharding(mesh, PartitionSpec()))(value)
    return whole


def _arrays(value: Any) -> list[jax.Array]:
    return [leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, jax.Array)]
