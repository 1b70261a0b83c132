"""The machine and the versions of a measurement."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = {
    "stratagem": ("stratagem",),
    "JAX": ("jax",),
    "TensorFlow": ("tensorflow-cpu", "tensorflow"),
    "PyTorch": ("torch",),
    "Keras": ("keras",),
    "NumPy": ("numpy",),
    "optax": ("optax",),
}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the relevant packages."""
    return {
        "Python": platform.python_version(),
        **{name: _version(names) for name, names in PACKAGES.items()},
    }


def machine() -> dict[str, str]:
    """Return cores, processor, memory and kernel."""
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "memory": _memory(),
        "kernel": f"{platform.system()} {platform.release()}",
        "load before": "{:.2f}, {:.2f}, {:.2f} (1, 5, 15 minutes)".format(*os.getloadavg()),
    }


def available_memory() -> int:
    """Return the bytes that are available to new processes."""
    return int(_field("/proc/meminfo", "MemAvailable").split()[0]) * 1024


def _version(names: tuple[str, ...]) -> str:
    for name in names:
        try:
            return version(name).partition("+")[0]  # who built it does not matter
        except PackageNotFoundError:
            continue
    return "not installed"


def _memory() -> str:
    total = _field("/proc/meminfo", "MemTotal")
    return f"{int(total.split()[0]) / (1 << 20):.1f} GiB" if total else "unknown"


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
