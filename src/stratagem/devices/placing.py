"""Arrays over devices of several processes: each process brings its own part, and asks nobody for theirs."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding


def put(value: Any, sharding: Sharding) -> jax.Array:
    """A new array with a value that every process of the sharding has.

    `jax.device_put` would ask the other processes whether theirs is the same, and wait for those that do not come.
    """
    if sharding.is_fully_addressable:
        placed: jax.Array = jax.device_put(value, sharding, may_alias=False)
        return placed
    if sharding.is_fully_replicated:
        parts = [jax.device_put(value, device, may_alias=False) for device in sharding.addressable_devices]
    else:
        host = np.asarray(value)
        places = sharding.addressable_devices_indices_map(host.shape)
        parts = [jax.device_put(host[place], device, may_alias=False) for device, place in places.items()]
    return jax.make_array_from_single_device_arrays(np.shape(value), sharding, parts)


def local_copy(array: Any) -> Any:
    """An array that is whole on devices of several processes, as it is on the first of this process's; others as they are."""
    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer) or array.is_fully_addressable:
        return array
    return array.addressable_data(0)
