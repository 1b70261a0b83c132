"""The two settings of this process that may change at any time: soft placement and the placement log."""

import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Settings:
    """What `configure` can switch while JAX is running."""

    soft_placement: bool = False
    log_device_placement: bool = False


_lock = threading.Lock()
_current = Settings()


def current() -> Settings:
    """The settings in force."""
    return _current


def change(*, soft_placement: bool | None = None, log_device_placement: bool | None = None) -> None:
    """Put new values in force; `None` leaves a setting as it is."""
    global _current
    with _lock:
        settings = _current
        if soft_placement is not None:
            settings = replace(settings, soft_placement=soft_placement)
        if log_device_placement is not None:
            settings = replace(settings, log_device_placement=log_device_placement)
        _current = settings
