"""The devices of this process that train together, and how values are laid over them."""

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
    """The batch that comes some steps after another one, as far as it is known."""

    def __init__(self, distance: int) -> None:
        self.distance = distance
        self._pair: tuple[Any, Any] = None, None

    def set(self, batch: Any, following: Any) -> None:
        """Note the batch that comes `distance` steps after another one; `None` if none does."""
        self._pair = batch, following

    def after(self, batch: Any) -> Any:
        """Return the batch that comes `distance` steps after this one; `None` if it is not known."""
        known, following = self._pair
        return following if known is batch else None


class Replicas:
    """The devices of this process that train together. Batches are split over them by rows, everything else is on each.

    Args:
        devices: The devices, in the order of the replicas.

    Attributes:
        mesh: The devices as a JAX mesh.
        split: The sharding of batches.
        whole: The sharding of everything else.
        read_host_memory: Whether compiled steps read host arrays where they are. Then nothing is gained by placing
            batches beforehand: making a device array of each costs more than it saves.
        lookahead: Knows a later batch, if steps want to know it. Then batches stay on the host: steps look ids up in
            them, which may have more bits than JAX computes with.
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
        """Return the devices of these names; by default all accelerators, or all CPU devices where there are none."""
        if names is not None:
            if isinstance(names, str):
                raise StrategyError(f"devices is a list of names such as ['/gpu:0', '/gpu:1'], not {names!r}")
            return cls([find_device(name).device for name in names])
        devices = list_devices()
        accelerators = [each.device for each in devices if each.spec.device_type != "CPU"]
        return cls(accelerators or [each.device for each in devices])

    @classmethod
    def first(cls, count: int | None) -> "Replicas":
        """Return the first `count` devices of this process, or all of them."""
        replicas = cls.named(None)
        if count is None or count == len(replicas):
            return replicas
        if count > len(replicas):
            raise StrategyError(
                f"{count} devices are asked for and this process has {len(replicas)}: start it with more (stratagem run "
                f"--devices-per-worker {count}, or sg.configure(virtual_devices={count})), or ask for fewer"
            )
        return cls(replicas.devices[:count])

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
        """Return whether a batch is already where these devices read it."""
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
        """Return copies on one device of arrays that are whole on every device; copy them there if need be."""
        if device not in self._device_set:
            return jax.device_put(arrays, device)
        position = self.devices.index(device)
        return jax.tree.map(lambda array: array.addressable_data(position), arrays)

    def settle(self, value: T) -> T:
        """Return what a step returned, after waiting for it if steps must not overlap."""
        if self._one_at_a_time:
            jax.block_until_ready(value)
        return value
