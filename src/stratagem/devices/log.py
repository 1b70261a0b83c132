"""The placement log: where each variable and program went, on standard error, if the user asked for it."""

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from stratagem.devices import settings
from stratagem.devices.local import LOCAL_JOB, LocalDevice, list_devices
from stratagem.devices.spec import DeviceSpec, as_spec


@dataclass
class PlacementLog:
    """Writes whole lines, one thread at a time; before the first one, the mapping of the local devices.

    Attributes:
        devices: gives the devices of the mapping, when the first line is due.
    """

    devices: Callable[[], list[LocalDevice]]
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _mapping_is_out: bool = field(default=False, repr=False)

    def write(self, name: str, kind: str, device: str | DeviceSpec) -> None:
        """Write one line, and the mapping if it is the first."""
        line = f"{name}: ({kind}): {full_name(as_spec(device))}\n"
        with self._lock:
            if not self._mapping_is_out:
                self._mapping_is_out = True
                mapping = "".join(f"{found.name} -> {found.description}\n" for found in self.devices())
                line = f"Device mapping:\n{mapping}{line}"
            sys.stderr.write(line)
            sys.stderr.flush()


def full_name(spec: DeviceSpec) -> str:
    """The name with the job, the replica and the task spelled out; a device type is not made up.

    Example:
        >>> full_name(DeviceSpec.from_string("/job:ps/cpu:0"))
        '/job:ps/replica:0/task:0/device:CPU:0'
    """
    return DeviceSpec(LOCAL_JOB, 0, 0).make_merged_spec(spec).to_string()


_log = PlacementLog(list_devices)


def log_placement(name: str, kind: str, device: str | DeviceSpec) -> None:
    """Tell the user where something went, if `configure(log_device_placement=True)` asked for it.

    Args:
        name: of the variable or the program.
        kind: `"Variable"` or `"Program"`.
        device: where it went; missing parts of a task's name are filled in.

    Example:
        `log_placement("w1", "Variable", "/job:ps/cpu:0")` writes
        `w1: (Variable): /job:ps/replica:0/task:0/device:CPU:0`.
    """
    if settings.current().log_device_placement:
        _log.write(name, kind, device)
