"""Devices of platforms that the machine does not have."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FakeDevice:
    """What the device layer looks at in a `jax.Device`."""

    platform: str
    id: int
    device_kind: str = "fake"

    def __str__(self) -> str:
        return f"{self.platform}:{self.id}"
