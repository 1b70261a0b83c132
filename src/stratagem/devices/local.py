"""The devices of this process under their TensorFlow names, and the search for one by its name."""

import logging
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratagem.devices import settings
from stratagem.devices.backend import default_jax_device, device_type, local_jax_devices
from stratagem.devices.spec import DeviceSpec, as_spec
from stratagem.errors import DeviceNotFoundError

if TYPE_CHECKING:
    import jax

LOCAL_JOB = "localhost"

_logger = logging.getLogger("stratagem")
_said: set[str] = set()
_said_lock = threading.Lock()
_SOFTLY = "call sg.configure(soft_placement=True) to use the CPU wherever a device is missing"


@dataclass(frozen=True)
class LocalDevice:
    """A device of this process.

    Attributes:
        name: its full name, such as `/job:localhost/replica:0/task:0/device:CPU:0`.
        device: the device as JAX knows it.
        description: what it is, in JAX's words.
    """

    name: str
    device: "jax.Device"
    description: str

    @property
    def spec(self) -> DeviceSpec:
        """The name as a `DeviceSpec`."""
        return DeviceSpec.from_string(self.name)


def list_devices() -> list[LocalDevice]:
    """Every device of this process, CPUs first, numbered from 0 within each type. Starts JAX's backends.

    Raises:
        DeviceNotFoundError: if JAX cannot start the platform that was asked for; or it has fewer GPUs than `configure`
            has chosen by name, and there is no soft placement.

    Example:
        >>> [device.name for device in list_devices()]
        ['/job:localhost/replica:0/task:0/device:CPU:0']
    """
    counts: defaultdict[str, int] = defaultdict(int)
    devices = []
    for device in local_jax_devices():
        kind = device_type(device)
        spec = DeviceSpec(LOCAL_JOB, 0, 0, kind, counts[kind])
        counts[kind] += 1
        devices.append(LocalDevice(spec.to_string(), device, f"{device.device_kind}, {device}"))
    _check_chosen(devices, counts["GPU"])
    return devices


def is_local(spec: DeviceSpec) -> bool:
    """Whether a name means a device of this process: no job or `localhost`, and no other task than 0."""
    return spec.job in (None, LOCAL_JOB) and spec.replica in (None, 0) and spec.task in (None, 0)


def find_device(device: str | DeviceSpec) -> LocalDevice:
    """The device of this process that a name means. Starts JAX's backends.

    A type without an index means the first device of that type, no type at all the one that JAX takes when
    none is named. With soft placement a device that is not there is replaced by the first CPU, and the log
    says so once.

    Args:
        device: a device string, such as `/gpu:1`, or a spec.

    Raises:
        DeviceSpecError: if the string is not a device string.
        DeviceNotFoundError: if this process has no such device; the message names those that it has.

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
        return next(found for found in devices if found.device == default)
    for found in devices:
        if found.spec.device_type == spec.device_type and spec.device_index in (
            None,
            found.spec.device_index,
        ):
            return found
    return _replacement(spec, devices)


def _replacement(spec: DeviceSpec, devices: list[LocalDevice]) -> LocalDevice:
    cpu = next((found for found in devices if found.spec.device_type == "CPU"), None)
    if cpu is None or not settings.current().soft_placement:
        raise DeviceNotFoundError(
            f"this process has no {_short(spec)}; it has {_names(devices)}. Name one of these, {_remedy(spec)}"
            f"or {_SOFTLY}"
        )
    _warn_once(f"this process has no {_short(spec)}: {_short(cpu.spec)} is used instead (soft placement)")
    return cpu


def _check_chosen(devices: list[LocalDevice], gpus: int) -> None:
    """Whether the GPUs are there that JAX was told to show: it does not mind if they are not."""
    chosen = settings.current().chosen_gpus
    if gpus >= len(chosen):
        return
    missing = f"visible_devices has {', '.join(chosen)}, and this process has {_names(devices)}"
    if not settings.current().soft_placement:
        raise DeviceNotFoundError(
            f"{missing}: choose among the GPUs that `stratagem devices` lists, or {_SOFTLY}"
        )
    _warn_once(f"{missing}: that is what is used (soft placement)")


def _warn_once(message: str) -> None:
    with _said_lock:
        is_new = message not in _said
        _said.add(message)
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
    return ", ".join(_short(found.spec) for found in devices)
