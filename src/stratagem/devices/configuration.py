"""`configure`: what is settled before JAX starts, and the two switches that may be turned at any time."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from stratagem.devices import settings
from stratagem.devices.backend import (
    backends_started,
    collectives_are_safe,
    cpu_device_count,
    device_type,
    jax_option,
    local_jax_devices,
)
from stratagem.devices.checks import positive
from stratagem.devices.spec import DeviceSpec
from stratagem.devices.threads import virtual_device_environment
from stratagem.devices.visible import VisibleDevices
from stratagem.environment import choose_jax_for_keras, current, set_variables
from stratagem.errors import ConfigurationError

_PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
_lock = threading.Lock()


@dataclass
class _Chosen:
    """What `configure` told JAX about visible devices, and the platforms that were set before it did."""

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
    """Say which devices this process shall have and how they are used; `None` leaves a thing as it is.

    The first three are read by JAX when it starts its backends, at the first operation or the first look at
    the devices: call this before, right after the imports. Saying again what is already in force is harmless.
    Keras computes with JAX if it is imported afterwards, unless KERAS_BACKEND says otherwise.

    Args:
        virtual_devices: make this many CPU devices, to try out a strategy without accelerators. XLA gets
            the threads that it needs for collectives over them.
        visible_devices: the devices that JAX may use: `["/gpu:1"]` hides the other GPUs, and the one left
            is `/gpu:0` from then on; `["/cpu:0"]` hides all accelerators. Whether the chosen GPUs are there is found
            out when devices are first looked for: without soft placement, missing ones are a `DeviceNotFoundError`.
        memory_growth: take GPU memory as it is needed instead of most of it at the start.
        soft_placement: use the CPU wherever a named device is missing, instead of raising.
        log_device_placement: write to standard error where each variable and program is placed.

    Raises:
        ConfigurationError: if a value is wrong, or comes after JAX has started with another.

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
    settings.change(soft_placement=soft_placement, log_device_placement=log_device_placement)


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
    settings.change(chosen_gpus=visible.gpu_names)


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
        f"configure({argument}) came too late: JAX was started {state}, and what devices it has cannot change "
        f"any more. Call sg.configure({argument}) before the first JAX operation, e.g. right after the imports"
    )
