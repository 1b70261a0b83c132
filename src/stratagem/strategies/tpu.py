"""`TPUStrategy`: the mirrored strategy on the TPUs of this machine."""

import jax

from stratagem.devices import guard_collectives, list_devices
from stratagem.errors import DeviceNotFoundError
from stratagem.strategies.base import Strategy
from stratagem.strategies.engines import MirroredEngine
from stratagem.strategies.replicas import Replicas
from stratagem.strategies.workers import Alone


def tpu_replicas(platform: str = "tpu") -> Replicas:
    """All TPU devices of this process; the platform is another only where there is no TPU to test on."""
    guard_collectives()
    try:
        return Replicas(jax.local_devices(backend=platform))
    except RuntimeError as error:
        found = ", ".join(each.name for each in list_devices())
        raise DeviceNotFoundError(
            f"there is no TPU here; JAX finds {found}. On a TPU machine install JAX with its TPU support "
            "(`pip install 'jax[tpu]'`); elsewhere use MirroredStrategy, which takes whatever devices there are"
        ) from error


class TPUStrategy(Strategy):
    """Synchronous training on the TPUs of one machine.

    It is `MirroredStrategy` over `jax.local_devices(backend="tpu")`, and has been run on virtual CPU devices only.

    Args:
        topology: Kept for TensorFlow's users: JAX finds the topology by itself.
    """

    def __init__(self, topology: object | None = None) -> None:
        super().__init__(MirroredEngine(tpu_replicas()), Alone())
        self.topology = topology
