"""The devices of this process under their TensorFlow names, the search for one by its name, and the placement log."""

import logging
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratagem.devices.backend import default_jax_device, device_type, local_jax_devices
from stratagem.devices.device_spec import DeviceSpec, as_spec
from stratagem.errors import DeviceNotFoundError

if TYPE_CHECKING:
    import jax

_LOCAL_JOB = "localhost"
_logger = logging.getLogger("stratagem")
_SOFT_PLACEMENT = "call sg.configure(soft_placement=True) to use the CPU wherever a device is missing"


@dataclass(frozen=True)
class PlacementSettings:
    """The settings of `configure` that concern the search for devices and the placement log.

    Attributes:
        soft_placement: Whether the CPU is used wherever a device is missing. May change at any time.
        log_device_placement: Whether placements are logged. May change at any time.
        chosen_gpus: The GPUs that JAX is to show, by name; those without an index are one name together.
    """

    soft_placement: bool = False
    log_device_placement: bool = False
    chosen_gpus: tuple[str, ...] = ()


_lock = threading.Lock()
_settings = PlacementSettings()
_past_warnings: set[str] = set()


def placement_settings() -> PlacementSettings:
    """Return the settings in force."""
    return _settings


def change_placement(
    *,
    soft_placement: bool | None = None,
    log_device_placement: bool | None = None,
    chosen_gpus: tuple[str, ...] | None = None,
) -> None:
    """Put new settings in force; `None` leaves one as it is."""
    global _settings
    values: dict[str, Any] = {
        "soft_placement": soft_placement,
        "log_device_placement": log_device_placement,
        "chosen_gpus": chosen_gpus,
    }
    with _lock:
        _settings = replace(_settings, **{name: value for name, value in values.items() if value is not None})


@dataclass(frozen=True)
class LocalDevice:
    """A device of this process.

    Attributes:
        name: Its full name, such as `/job:localhost/replica:0/task:0/device:CPU:0`.
        device: The device as JAX knows it.
        description: Its kind and name, in JAX's words.
    """

    name: str
    device: "jax.Device"
    description: str

    @property
    def spec(self) -> DeviceSpec:
        """The name as a `DeviceSpec`."""
        return DeviceSpec.from_string(self.name)


def list_devices() -> list[LocalDevice]:
    """Return every device of this process, CPUs first, numbered from 0 within each type. Starts JAX's backends.

    Raises:
        DeviceNotFoundError: JAX cannot start the platform that was asked for; or it has fewer GPUs than `configure`
            has chosen by name, and there is no soft placement.

    Example:
        >>> [device.name for device in list_devices()]
        ['/job:localhost/replica:0/task:0/device:CPU:0']
    """
    counts: defaultdict[str, int] = defaultdict(int)
    devices = []
    for device in local_jax_devices():
        kind = device_type(device)
        spec = DeviceSpec(_LOCAL_JOB, 0, 0, kind, counts[kind])
        counts[kind] += 1
        devices.append(LocalDevice(spec.to_string(), device, f"{device.device_kind}, {device}"))
    _check_chosen(devices, counts["GPU"])
    return devices


def is_local(spec: DeviceSpec) -> bool:
    """Return whether a name means a device of this process: no job or `localhost`, and no other task than 0."""
    return spec.job in (None, _LOCAL_JOB) and spec.replica in (None, 0) and spec.task in (None, 0)


def find_device(device: str | DeviceSpec) -> LocalDevice:
    """Return the device of this process that a name means. Starts JAX's backends.

    A type without an index means the first device of that type, no type at all the one that JAX takes when
    none is named. With soft placement a missing device is replaced by the first CPU, and the log says so once.

    Args:
        device: A device string, such as `/gpu:1`, or a spec.

    Raises:
        DeviceSpecError: The string is not a device string.
        DeviceNotFoundError: This process has no such device; the message names those that it has.

    Example:
        >>> find_device("/cpu:0").name
        '/job:localhost/replica:0/task:0/device:CPU:0'
    """
    spec = as_spec(device)
    devices = list_devices()
    if not is_local(spec):
        raise DeviceNotFoundError(
            f"{spec} is a device of another task, not of this process, which has {_names(devices)}. Leave the "
            "job and the task out to name one of these; a Session reaches the devices of other tasks"
        )
    if spec.device_type is None:
        default = default_jax_device()
        return next(each for each in devices if each.device == default)
    for each in devices:
        if each.spec.device_type == spec.device_type and spec.device_index in (None, each.spec.device_index):
            return each
    return _replacement(spec, devices)


def _replacement(spec: DeviceSpec, devices: list[LocalDevice]) -> LocalDevice:
    cpu = next((each for each in devices if each.spec.device_type == "CPU"), None)
    if cpu is None or not _settings.soft_placement:
        raise DeviceNotFoundError(
            f"this process has no {_short(spec)}; it has {_names(devices)}. Name one of these, {_remedy(spec)}"
            f"or {_SOFT_PLACEMENT}"
        )
    _warn_once(f"this process has no {_short(spec)}: {_short(cpu.spec)} is used instead (soft placement)")
    return cpu


def _check_chosen(devices: list[LocalDevice], gpus: int) -> None:
    """Check that the GPUs exist that JAX was told to show: JAX itself does not."""
    chosen = _settings.chosen_gpus
    if gpus >= len(chosen):
        return
    missing = f"visible_devices has {', '.join(chosen)}, and this process has {_names(devices)}"
    if not _settings.soft_placement:
        raise DeviceNotFoundError(
            f"{missing}: choose among the GPUs that `stratagem devices` lists, or {_SOFT_PLACEMENT}"
        )
    _warn_once(f"{missing}: that is what is used (soft placement)")


def _warn_once(message: str) -> None:
    with _lock:
        is_new = message not in _past_warnings
        _past_warnings.add(message)
    if is_new:
        _logger.warning("%s", message)


def _remedy(spec: DeviceSpec) -> str:
    if spec.device_type == "CPU" and spec.device_index is not None:
        return (
            f"make more of them with sg.configure(virtual_devices={spec.device_index + 1}) before the first "
            "JAX operation, "
        )
    return ""


def _short(spec: DeviceSpec) -> str:
    return DeviceSpec(device_type=spec.device_type, device_index=spec.device_index).to_string()


def _names(devices: list[LocalDevice]) -> str:
    return ", ".join(_short(device.spec) for device in devices)


def visible_gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> tuple[str, ...]:
    """Return the NVIDIA GPUs that tasks may use, as CUDA_VISIBLE_DEVICES names them.

    These are the GPUs that the driver shows, unless the user has chosen some of them, or hidden them. JAX is not
    started: a process that only asks must take no GPU.
    """
    platforms = environ.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return ()
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = (name.strip() for name in visible.split(","))
        # CUDA ignores what comes after such.
        return tuple(takewhile(lambda name: name and name != "-1", names))
    nodes = (node.name.removeprefix("nvidia") for node in devices.glob("nvidia*"))
    return tuple(sorted((name for name in nodes if name.isdecimal()), key=int))


@dataclass
class PlacementLog:
    """Writes whole lines, one thread at a time; before the first one, the mapping of the local devices.

    Attributes:
        devices: Returns the devices of the mapping, when the first line is due.
    """

    devices: Callable[[], list[LocalDevice]]
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _mapping_is_out: bool = field(default=False, repr=False)

    def write(self, name: str, kind: str, device: str | DeviceSpec) -> None:
        """Write one line, and the mapping if it is the first."""
        line = f"{name}: ({kind}): {_full_name(as_spec(device))}\n"
        with self._lock:
            if not self._mapping_is_out:
                self._mapping_is_out = True
                mapping = "".join(f"{device.name} -> {device.description}\n" for device in self.devices())
                line = f"Device mapping:\n{mapping}{line}"
            sys.stderr.write(line)
            sys.stderr.flush()


def _full_name(spec: DeviceSpec) -> str:
    """Return the name with the job, the replica and the task spelled out."""
    return DeviceSpec(_LOCAL_JOB, 0, 0).make_merged_spec(spec).to_string()


_placement_log = PlacementLog(list_devices)


def log_placement(name: str, kind: str, device: str | DeviceSpec) -> None:
    """Log where something was placed, on standard error, if `configure(log_device_placement=True)` asked for it.

    Args:
        name: The name of the variable or the program.
        kind: `"Variable"` or `"Program"`.
        device: Where it was placed; missing parts of a task's name are filled in.

    Example:
        `log_placement("w1", "Variable", "/job:ps/cpu:0")` writes
        `w1: (Variable): /job:ps/replica:0/task:0/device:CPU:0`.
    """
    if _settings.log_device_placement:
        _placement_log.write(name, kind, device)
