"""The border to JAX's backends: whether they have started, their devices, and whether collectives are safe.

The only module of this layer that looks inside JAX, and the one place where its errors become ours.
"""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stratagem.devices.threads import (
    limited_environment,
    pool_size,
    requested_devices,
    thread_environment,
    threads_needed,
)
from stratagem.environment import current, set_variables
from stratagem.errors import DeviceNotFoundError

if TYPE_CHECKING:
    import jax

_TYPES = {"cuda": "GPU", "rocm": "GPU", "gpu": "GPU"}


def backends_started() -> bool:
    """Return whether JAX has started its backends, after which its devices cannot change."""
    if "jax" not in sys.modules:
        return False
    from jax._src.xla_bridge import backends_are_initialized

    return backends_are_initialized()


def jax_option(name: str) -> Any:
    """Return the value of one of JAX's configuration options, such as `jax_platforms`."""
    import jax

    return getattr(jax.config, name)


def device_type(device: "jax.Device") -> str:
    """Return our name for the kind of device that JAX calls `cpu`, `cuda`, `rocm` or `tpu`."""
    platform = str(device.platform)
    return _TYPES.get(platform, platform.upper())


def local_jax_devices() -> list["jax.Device"]:
    """Return every device of this process, on all platforms, CPUs first. Starts JAX's backends.

    Raises:
        DeviceNotFoundError: JAX cannot start them.
    """
    guard_collectives()
    import jax
    from jax.extend.backend import backends

    try:
        devices = [device for platform in backends() for device in jax.local_devices(backend=platform)]
    except RuntimeError as error:
        raise DeviceNotFoundError(
            f"JAX could not start its devices: {error}. Install the plug-in of the platform that was asked "
            "for, or unset JAX_PLATFORMS so that JAX takes what is there"
        ) from error
    unique = {(device.platform, device.id): device for device in devices}
    return sorted(
        unique.values(), key=lambda device: (device_type(device) != "CPU", device.platform, device.id)
    )


def default_jax_device() -> "jax.Device":
    """Return the device that JAX takes when none is named. Starts JAX's backends."""
    guard_collectives()
    import jax

    return jax.local_devices()[0]


def guard_collectives() -> bool:
    """Make collectives over virtual CPU devices safe, however many the user asked JAX for and by what means.

    Called before JAX's backends start, it enlarges XLA's thread pool if necessary.

    Returns:
        Whether collectives are safe. Only a process that started JAX itself, with virtual devices and too
        small a pool, gets `False`: it has to wait for each step before it dispatches the next.
    """
    environ = current()
    if backends_started():
        return collectives_are_safe(cpu_device_count(), environ)
    set_variables(thread_environment(_configured_cpu_devices(environ), environ))
    return True


def collectives_are_safe(devices: int, environ: Mapping[str, str]) -> bool:
    """Return whether XLA's pool in a process with this environment is large enough for `devices` CPU devices."""
    return pool_size(environ) >= threads_needed(devices) or devices == 1


def cpu_device_count() -> int:
    """Return how many CPU devices of its own this process has, or will have once JAX's backends start."""
    if not backends_started():
        return _configured_cpu_devices(current())
    import jax

    try:
        return len(jax.local_devices(backend="cpu"))
    except RuntimeError:  # JAX_PLATFORMS left the CPU out
        return 0


def _configured_cpu_devices(environ: Mapping[str, str]) -> int:
    if "jax" in sys.modules:
        configured = int(jax_option("jax_num_cpu_devices"))
        if configured >= 0:
            return max(1, configured)
    return requested_devices(environ)


_ASYNC_DISPATCH = "JAX_CPU_ENABLE_ASYNC_DISPATCH"


def limit_threads(threads: int) -> None:
    """Limit XLA to some threads, since other processes compute on this machine's other cores.

    Has no effect on what the user has decided, or where JAX has already started.
    """
    if not backends_started():
        set_variables(limited_environment(threads, current()))


def compute_in_calling_thread() -> None:
    """Let a process that waits for each result compute it in the thread that waits.

    JAX hands CPU computations to a thread of its own, so that Python can go on; a process that waits anyway only pays
    for waking two threads. Has no effect with several CPU devices, which need threads of their own, or where the user
    has decided otherwise or has already started JAX.
    """
    if not backends_started() and requested_devices(current()) == 1 and _ASYNC_DISPATCH not in current():
        import jax

        jax.config.update(_ASYNC_DISPATCH.lower(), False)
