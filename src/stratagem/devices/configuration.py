"""`configure`: options that take effect when JAX starts, and the two switches that may be changed at any time."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from stratagem.devices.backend import (
    backends_started,
    collectives_are_safe,
    cpu_device_count,
    device_type,
    jax_option,
    local_jax_devices,
)
from stratagem.devices.device_spec import DeviceSpec, as_spec
from stratagem.devices.local import change_placement, is_local
from stratagem.devices.threads import virtual_device_environment
from stratagem.devices.whole_numbers import positive
from stratagem.environment import choose_jax_for_keras, current, set_variables
from stratagem.errors import ConfigurationError, DeviceSpecError

_PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
_EXAMPLE = 'visible_devices=["/gpu:0", "/gpu:1"] or visible_devices=["/cpu:0"]'
_lock = threading.Lock()


@dataclass(frozen=True)
class VisibleDevices:
    """The devices that JAX shall see. Pure.

    Attributes:
        gpus: Which GPUs, by their index on this machine; `None` for all, empty for none.
        cpus: Which CPU devices were named; `None` if none was by its index.
    """

    gpus: tuple[int, ...] | None
    cpus: tuple[int, ...] | None

    @classmethod
    def parse(cls, names: object) -> Self:
        """Read the names that a user gave.

        Raises:
            ConfigurationError: They are not a list of local CPUs and GPUs.

        Example:
            >>> VisibleDevices.parse(["/gpu:1"])
            VisibleDevices(gpus=(1,), cpus=None)
        """
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise ConfigurationError(f"visible_devices is {names!r}; it has to be a list, as in {_EXAMPLE}")
        specs = [_local_spec(name) for name in names]
        if not specs:
            raise ConfigurationError(f"visible_devices names no device at all; name some, as in {_EXAMPLE}")
        gpus = [spec.device_index for spec in specs if spec.device_type == "GPU"]
        cpus = [spec.device_index for spec in specs if spec.device_type == "CPU"]
        return cls(_indices(gpus) if gpus else (), _indices(cpus) if cpus else None)

    @property
    def cpu_only(self) -> bool:
        """True if JAX shall leave GPUs and TPUs alone."""
        return self.gpus == ()

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """The GPUs that were chosen: one by one, or all that there are under one name."""
        return ("/gpu",) if self.gpus is None else tuple(f"/gpu:{index}" for index in self.gpus)

    def check_cpus(self, count: int) -> None:
        """Refuse to hide some of the `count` CPU devices from JAX, which cannot do that."""
        if self.cpus is not None and self.cpus != tuple(range(count)):
            named = ", ".join(f"/cpu:{index}" for index in self.cpus)
            raise ConfigurationError(
                f"visible_devices names {named}, but JAX is to have {count} CPU device(s), and all of its CPU "
                f'devices are visible. Say "/cpu:*", or make {max(self.cpus) + 1} of them with '
                f"virtual_devices={max(self.cpus) + 1}"
            )

    def jax_configuration(self) -> dict[str, str]:
        """Return the values of JAX's configuration that make this choice."""
        if self.cpu_only:
            return {"jax_platforms": "cpu"}
        gpus = "all" if self.gpus is None else ",".join(map(str, self.gpus))
        return {"jax_cuda_visible_devices": gpus, "jax_rocm_visible_devices": gpus}


@dataclass
class _Chosen:
    """The visible devices that `configure` gave to JAX, and the platforms that were set before."""

    visible: VisibleDevices | None = None
    platforms: str | None = None


_chosen = _Chosen()


def configure(
    virtual_devices: int | None = None,
    visible_devices: Iterable[str | DeviceSpec] | None = None,
    memory_growth: bool | None = None,
    soft_placement: bool | None = None,
    log_device_placement: bool | None = None,
) -> None:
    """Choose which devices this process has and how they are used; `None` leaves a setting as it is.

    JAX reads the first three when it starts its backends, at the first operation or the first look at
    the devices: call this before, right after the imports. Repeating what is already in force is harmless.
    Keras computes with JAX if it is imported afterwards, unless KERAS_BACKEND says otherwise.

    Args:
        virtual_devices: Make this many CPU devices, to try out a strategy without accelerators. XLA gets
            the threads that it needs for collectives over them.
        visible_devices: The devices that JAX may use: `["/gpu:1"]` hides the other GPUs, and the one left
            is `/gpu:0` from then on; `["/cpu:0"]` hides all accelerators. The chosen GPUs are looked for when devices
            are first needed: without soft placement, missing ones are a `DeviceNotFoundError`.
        memory_growth: Take GPU memory as it is needed instead of most of it at the start.
        soft_placement: Use the CPU wherever a named device is missing, instead of raising.
        log_device_placement: Write to standard error where each variable and program is placed.

    Raises:
        ConfigurationError: A value is wrong, or comes after JAX has started with another.

    Example:
        >>> import stratagem as sg
        >>> sg.configure(virtual_devices=4, soft_placement=True)
    """
    if virtual_devices is not None:
        virtual_devices = positive("virtual_devices", virtual_devices, "sg.configure(virtual_devices=4)")
    visible = None if visible_devices is None else VisibleDevices.parse(visible_devices)
    switches = {
        "memory_growth": memory_growth,
        "soft_placement": soft_placement,
        "log_device_placement": log_device_placement,
    }
    for name, value in switches.items():
        if value is not None and not isinstance(value, bool):
            raise ConfigurationError(
                f"{name} is {value!r}; it has to be True, False, or None to leave it as it is"
            )
    with _lock:
        choose_jax_for_keras()
        _configure_start(virtual_devices, visible, memory_growth)
    change_placement(soft_placement=soft_placement, log_device_placement=log_device_placement)


def _configure_start(
    virtual_devices: int | None, visible: VisibleDevices | None, memory_growth: bool | None
) -> None:
    if visible is not None:
        visible.check_cpus(cpu_device_count() if virtual_devices is None else virtual_devices)
    started = backends_started()
    if virtual_devices is not None:
        (_require_virtual_devices if started else _make_virtual_devices)(virtual_devices)
    if visible is not None:
        (_require_visible if started else _make_visible)(visible)
    if memory_growth is not None:
        (_require_memory_growth if started else _make_memory_growth)(memory_growth)


def _make_virtual_devices(count: int) -> None:
    # XLA reads its pool's size with getenv when the CPU client is made, so setting it now is early enough.
    set_variables(virtual_device_environment(count, current()))
    import jax

    jax.config.update("jax_num_cpu_devices", count)


def _make_visible(visible: VisibleDevices) -> None:
    import jax

    cpu_only_before = _chosen.visible is not None and _chosen.visible.cpu_only
    if visible.cpu_only and not cpu_only_before:
        _chosen.platforms = jax_option("jax_platforms")
    elif cpu_only_before and not visible.cpu_only:
        jax.config.update("jax_platforms", _chosen.platforms)
    for name, value in visible.jax_configuration().items():
        jax.config.update(name, value)
    _chosen.visible = visible
    change_placement(chosen_gpus=visible.gpu_names)


def _make_memory_growth(growth: bool) -> None:
    set_variables({_PREALLOCATE: "false" if growth else "true"})


def _require_virtual_devices(count: int) -> None:
    have = cpu_device_count()
    if have != count:
        raise _too_late(f"virtual_devices={count}", f"with {have} CPU device(s)")
    if not collectives_are_safe(count, current()):
        raise _too_late(
            f"virtual_devices={count}",
            f"with {count} CPU devices but too few threads for collectives over them, which would deadlock",
        )


def _require_visible(visible: VisibleDevices) -> None:
    types = {device_type(device) for device in local_jax_devices()}
    if visible != _chosen.visible and not (visible.cpu_only and types == {"CPU"}):
        raise _too_late("visible_devices=[…]", f"with all the {' and '.join(sorted(types))} devices it found")


def _require_memory_growth(growth: bool) -> None:
    in_force = current().get(_PREALLOCATE, "true").lower() in ("false", "0")
    if in_force != growth:
        raise _too_late(f"memory_growth={growth}", f"with memory_growth={in_force}")


def _too_late(argument: str, state: str) -> ConfigurationError:
    return ConfigurationError(
        f"configure({argument}) came too late: JAX was started {state}, and its devices can no longer "
        f"change. Call sg.configure({argument}) before the first JAX operation, e.g. right after the imports"
    )


def _local_spec(name: object) -> DeviceSpec:
    try:
        spec = as_spec(name)  # type: ignore[arg-type]  # a name of another kind is refused in there
    except DeviceSpecError as error:
        raise ConfigurationError(f"visible_devices has {name!r}: {error}") from error
    if not is_local(spec):
        raise ConfigurationError(
            f"visible_devices has {name!r}, which names another task; name devices of this machine, as in {_EXAMPLE}"
        )
    if spec.device_type not in ("CPU", "GPU"):
        raise ConfigurationError(
            f"visible_devices has {name!r}; only CPUs and GPUs can be chosen, as in {_EXAMPLE}. To choose "
            "among TPU chips set TPU_VISIBLE_CHIPS before the program starts"
        )
    return spec


def _indices(indices: list[int | None]) -> tuple[int, ...] | None:
    if None in indices:
        return None
    return tuple(sorted({index for index in indices if index is not None}))
