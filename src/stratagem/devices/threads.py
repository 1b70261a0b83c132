"""The threads that XLA's CPU client needs for virtual devices, and the environment variables that set them.

A collective over n CPU devices blocks n threads of XLA's pool until all of them have arrived, while the
next step already waits in the same pool: with fewer than 2n threads the process stops for good, and XLA
aborts it. The pool's size is read from the environment when JAX starts its CPU backend.
"""

import os
import re
from collections.abc import Mapping

from stratagem.devices.whole_numbers import positive

POOL_SIZE = ("PJRT_NPROC", "NPROC")
"""The variables from which XLA takes its pool's size: the first that holds a number counts."""
DEVICE_COUNT = "JAX_NUM_CPU_DEVICES"
_XLA_FLAGS = "XLA_FLAGS"
_XLA_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def threads_needed(devices: int) -> int:
    """Return the smallest pool with which `devices` CPU devices and one dispatching thread cannot stop each other."""
    return 2 * devices if devices > 1 else 1


def recommended_threads(devices: int) -> int:
    """Return the pool that we ask for: each further thread that dispatches collectives needs as much again.

    Room for eight such threads, less where that would mean hundreds; idle threads cost nothing measurable. No pool is
    large enough for several threads that dispatch on and on and never wait for a result.
    """
    return max(2 * threads_needed(devices), min(8 * threads_needed(devices), 256)) if devices > 1 else 1


def pool_size(environ: Mapping[str, str], cores: int | None = None) -> int:
    """Return how many threads XLA's pool has, or will have, in a process with this environment.

    Args:
        environ: The environment of that process.
        cores: Cores that it may use; those of this process if left out.
    """
    for name in POOL_SIZE:
        try:
            return max(0, int(environ.get(name, "")))
        except ValueError:
            continue
    return len(os.sched_getaffinity(0)) if cores is None else cores


def requested_devices(environ: Mapping[str, str]) -> int:
    """Return how many CPU devices JAX makes in a process that starts with this environment."""
    try:
        count = int(environ.get(DEVICE_COUNT, ""))
    except ValueError:
        count = -1
    if count >= 0:
        return max(1, count)
    flags = _XLA_DEVICE_COUNT.findall(environ.get(_XLA_FLAGS, ""))
    return max(1, int(flags[-1])) if flags else 1


def thread_environment(devices: int, environ: Mapping[str, str], cores: int | None = None) -> dict[str, str]:
    """Return what to set beside `environ` for a pool that suits `devices` CPU devices; never a smaller one."""
    if pool_size(environ, cores) >= recommended_threads(devices):
        return {}
    return {POOL_SIZE[0]: str(recommended_threads(devices))}


def virtual_device_environment(
    count: int, environ: Mapping[str, str], cores: int | None = None
) -> dict[str, str]:
    """Return the variables to set, beside `environ`, for a process that shall have `count` virtual CPU devices.

    Pure: nothing is set, JAX is not imported. A process started with these is safe from XLA's deadlock of
    virtual devices whatever it does before it imports Stratagem.

    Args:
        count: How many CPU devices JAX shall have.
        environ: The environment that the process starts from; a larger thread pool in it is kept.
        cores: Cores that the process may use; those of this process if left out.

    Raises:
        ConfigurationError: `count` is not a whole number of at least 1.

    Example:
        >>> virtual_device_environment(4, {"PATH": "/usr/bin"}, cores=2)
        {'JAX_NUM_CPU_DEVICES': '4', 'PJRT_NPROC': '64'}
        >>> virtual_device_environment(4, {"PJRT_NPROC": "100"})
        {'JAX_NUM_CPU_DEVICES': '4'}
    """
    count = positive("the number of virtual devices", count, "virtual_device_environment(4, os.environ)")
    return {DEVICE_COUNT: str(count), **thread_environment(count, environ, cores)}


_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"


def limited_environment(threads: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what to set beside `environ` to limit XLA to some threads, for processes that share a machine.

    With several CPU devices the pool stays as large as these need, and each device computes on one thread.

    Example:
        >>> limited_environment(1, {})
        {'XLA_FLAGS': '--xla_cpu_multi_thread_eigen=false', 'PJRT_NPROC': '1'}
        >>> limited_environment(3, {"NPROC": "8"})
        {}
    """
    flags = environ.get(_XLA_FLAGS, "")
    limited = {}
    if threads == 1 and "xla_cpu_multi_thread_eigen" not in flags:
        limited[_XLA_FLAGS] = f"{flags} {_ONE_THREAD}".strip()
    if requested_devices(environ) == 1 and not any(name in environ for name in POOL_SIZE):
        limited[POOL_SIZE[0]] = str(threads)
    return limited
