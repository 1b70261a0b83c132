"""What of `configure` the search for devices asks about: soft placement, the placement log, the GPUs that were chosen."""

import threading
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Settings:
    """What is in force.

    Attributes:
        soft_placement: Whether the CPU is used wherever a device is missing. May change at any time.
        log_device_placement: Whether placements are written out. May change at any time.
        chosen_gpus: The GPUs that JAX is to show, by name; those without an index are one name together.
    """

    soft_placement: bool = False
    log_device_placement: bool = False
    chosen_gpus: tuple[str, ...] = ()


_lock = threading.Lock()
_current = Settings()


def current() -> Settings:
    """The settings in force."""
    return _current


def change(
    *,
    soft_placement: bool | None = None,
    log_device_placement: bool | None = None,
    chosen_gpus: tuple[str, ...] | None = None,
) -> None:
    """Put new values in force; `None` leaves a setting as it is."""
    global _current
    given: dict[str, Any] = {
        "soft_placement": soft_placement,
        "log_device_placement": log_device_placement,
        "chosen_gpus": chosen_gpus,
    }
    with _lock:
        _current = replace(_current, **{name: value for name, value in given.items() if value is not None})
