"""The devices of this process that train together: a mesh, and how values are laid over it."""

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from stratagem.devices import find_device, guard_collectives, list_devices
from stratagem.engines.rows import count_rows
from stratagem.errors import StrategyError

REPLICA_AXIS = "replica"
T = TypeVar("T")


class Lookahead:
    """The batch that comes some steps after another one, as far as that is known.

    Args:
        distance: How many steps.
    """

    def __init__(self, distance: int) -> None:
        self.distance = distance
        self._pair: tuple[Any, Any] = None, None

    def tell(self, batch: Any, following: Any) -> None:
        """So many steps after this batch comes that one; `None` if none does."""
        self._pair = batch, following

    def after(self, batch: Any) -> Any:
        """The batch that comes so many steps after this one; `None` if that is not known."""
        known, following = self._pair
        return following if known is batch else None


class Replicas:
    """Devices in a row. Batches are split over them by rows, everything else is on each of them.

    Args:
        devices: The devices, in the order of the replicas.

    Attributes:
        mesh: The devices, as JAX wants them.
        split: How batches lie on them.
        whole: How everything else does.
        read_host_memory: Whether compiled steps read host arrays where they are. Then nothing is gained by placing
            batches beforehand: to make a device's array of each costs more than what it holds is worth.
        lookahead: Where a batch after the present one is told, if steps want to know. Then batches stay on the host:
            steps look ids up in them, which may have more bits than JAX computes with.
    """

    def __init__(self, devices: Sequence[jax.Device]) -> None:
        if len(set(devices)) != len(devices) or not devices:
            raise StrategyError(
                f"replicas need devices, each of them once; got {[str(each) for each in devices]}"
            )
        # With too small a pool of threads, steps in flight at the same time would block each other for ever.
        self._one_at_a_time = not guard_collectives() and len(devices) > 1
        self.devices = tuple(devices)
        self.lookahead: Lookahead | None = None
        self._device_set = set(devices)
        self.read_host_memory = len(devices) == 1 and devices[0].platform == "cpu"
        self.mesh = Mesh(np.array(devices), (REPLICA_AXIS,))
        self.split: Sharding
        self.whole: Sharding
        if len(devices) == 1:  # JAX moves arrays to one device more quickly than over a mesh of one
            self.split = self.whole = SingleDeviceSharding(devices[0])
        else:
            self.split = NamedSharding(self.mesh, PartitionSpec(REPLICA_AXIS))
            self.whole = NamedSharding(self.mesh, PartitionSpec())

    @classmethod
    def named(cls, names: Sequence[str] | None) -> "Replicas":
        """Those of these names; all accelerators by default, or all CPU devices where there are none."""
        if names is not None:
            if isinstance(names, str):
                raise StrategyError(f"devices is a list of names such as ['/gpu:0', '/gpu:1'], not {names!r}")
            return cls([find_device(name).device for name in names])
        found = list_devices()
        accelerators = [each.device for each in found if each.spec.device_type != "CPU"]
        return cls(accelerators or [each.device for each in found])

    @classmethod
    def first(cls, count: int | None) -> "Replicas":
        """So many of this process's devices, or all of them."""
        found = cls.named(None)
        if count is None or count == len(found):
            return found
        if count > len(found):
            raise StrategyError(
                f"{count} devices are asked for and this process has {len(found)}: start it with more (stratagem run "
                f"--devices-per-worker {count}, or sg.configure(virtual_devices={count})), or ask for fewer"
            )
        return cls(found.devices[:count])

    def __len__(self) -> int:
        return len(self.devices)

    def place(self, batch: Any) -> Any:
        """Put a host batch on the devices: split by rows, or whole on each where the rows do not divide."""
        sharding = self.split if count_rows(batch) % len(self) == 0 else self.whole
        if sharding is self.whole:
            return jax.device_put(batch, sharding)
        return jax.device_put(
            batch, jax.tree.map(lambda leaf: sharding if np.ndim(leaf) > 0 else self.whole, batch)
        )

    def replicate(self, value: Any) -> Any:
        """Put a value whole on every device."""
        return jax.device_put(value, self.whole)

    def is_placed(self, batch: Any) -> bool:
        """Whether a batch is where these devices read it already."""
        for leaf in jax.tree.leaves(batch):
            if isinstance(
                leaf, np.ndarray
            ):  # asked first, as JAX takes longer to say what is an array of its own
                if not self.read_host_memory:
                    return False
            elif not isinstance(leaf, jax.Array) or not self._is_on_all(leaf.sharding):
                return False
        return True

    def _is_on_all(self, sharding: Sharding) -> bool:
        return sharding is self.split or sharding is self.whole or sharding.device_set == self._device_set

    def copy_on(self, device: jax.Device, arrays: Any) -> Any:
        """The copies on one device of arrays that are whole on every device, brought there if need be."""
        if device not in self._device_set:
            return jax.device_put(arrays, device)
        place = self.devices.index(device)
        return jax.tree.map(lambda array: array.addressable_data(place), arrays)

    def settle(self, value: T) -> T:
        """What a step returned, waited for if steps must not overlap."""
        if self._one_at_a_time:
            jax.block_until_ready(value)
        return value
