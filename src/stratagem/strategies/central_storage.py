"""`CentralStorageStrategy`: variables once, in the host's memory; every device computes."""

from collections.abc import Sequence

import jax
from jax.sharding import SingleDeviceSharding

from stratagem.devices import find_device
from stratagem.engines.local_engines import CentralEngine, SpreadEngine
from stratagem.engines.replicas import Replicas
from stratagem.engines.workers import Alone
from stratagem.strategies.base import Strategy

_HOST_MEMORY = "pinned_host"


class CentralStorageStrategy(Strategy):
    """Synchronous training where parameters and optimizer state do not fit, or are not wanted, on every device.

    On accelerators the variables live in host memory that the first accelerator reads and writes by itself, and which
    updates them. CPU devices all have the host's memory: there each variable is sharded over them, and each updates its
    shards.

    Args:
        compute_devices: Names of the devices that compute; by default all accelerators, or all CPU devices.
        parameter_device: Where the variables live and are updated: the host by default, or the only device.
    """

    def __init__(
        self, compute_devices: Sequence[str] | None = None, parameter_device: str | None = None
    ) -> None:
        self._own_task()
        replicas = Replicas.named(compute_devices)
        if parameter_device is None and len(replicas) > 1 and _share_host_memory(replicas):
            super().__init__(SpreadEngine(replicas), Alone())
            return
        if parameter_device is not None:
            storage = SingleDeviceSharding(find_device(parameter_device).device)
        elif len(replicas) == 1:
            storage = SingleDeviceSharding(replicas.devices[0])
        else:
            storage = host_of(replicas.devices[0])
        super().__init__(CentralEngine(replicas, storage), Alone())


def _share_host_memory(replicas: Replicas) -> bool:
    return all(device.platform == "cpu" for device in replicas.devices)


def host_of(device: jax.Device) -> SingleDeviceSharding:
    """Return the host's memory as a device uses it: directly, if it can, else through JAX's CPU device."""
    if reaches_host(device):
        return SingleDeviceSharding(device, memory_kind=_HOST_MEMORY)
    return SingleDeviceSharding(find_device("/cpu:0").device)


def reaches_host(device: jax.Device) -> bool:
    """Return whether a device is an accelerator that reads and writes its host's memory by itself."""
    return device.platform != "cpu" and _HOST_MEMORY in [each.kind for each in device.addressable_memories()]
