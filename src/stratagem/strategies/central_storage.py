"""`CentralStorageStrategy`: variables once, in the host's memory; every device computes."""

from collections.abc import Sequence

from stratagem.devices import find_device
from stratagem.strategies.base import Strategy
from stratagem.strategies.engines import CentralEngine
from stratagem.strategies.replicas import Replicas
from stratagem.strategies.workers import Alone


class CentralStorageStrategy(Strategy):
    """Synchronous training where parameters and optimizer state do not fit, or are not wanted, on every device.

    Args:
        compute_devices: Names of the devices that compute; by default all accelerators, or all CPU devices.
        parameter_device: Where the variables live: the host by default, or the only device.
    """

    def __init__(
        self, compute_devices: Sequence[str] | None = None, parameter_device: str | None = None
    ) -> None:
        replicas = Replicas.named(compute_devices)
        if parameter_device is not None:
            home = find_device(parameter_device).device
        else:
            home = replicas.devices[0] if len(replicas) == 1 else find_device("/cpu:0").device
        super().__init__(CentralEngine(replicas, home), Alone())
