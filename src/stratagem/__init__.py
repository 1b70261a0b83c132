"""Stratagem: write the model once, train it on one device, on all devices of a machine, or on a cluster.

`import stratagem as sg`. Names are loaded when first used, so that importing the package costs next to
nothing and does not import JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratagem.cluster import ClusterConfig as ClusterConfig
    from stratagem.cluster import ClusterSpec as ClusterSpec
    from stratagem.cluster import resolve_cluster as resolve_cluster
    from stratagem.errors import ClusterError as ClusterError
    from stratagem.errors import ConfigurationError as ConfigurationError
    from stratagem.errors import DeviceError as DeviceError
    from stratagem.errors import DeviceNotFoundError as DeviceNotFoundError
    from stratagem.errors import DeviceSpecError as DeviceSpecError
    from stratagem.errors import LaunchError as LaunchError
    from stratagem.errors import StratagemError as StratagemError

__version__ = "0.1.0"

# The same list as above, for the interpreter: a test holds the two together.
_HOME = {
    "ClusterConfig": "stratagem.cluster",
    "ClusterError": "stratagem.errors",
    "ClusterSpec": "stratagem.cluster",
    "ConfigurationError": "stratagem.errors",
    "DeviceError": "stratagem.errors",
    "DeviceNotFoundError": "stratagem.errors",
    "DeviceSpecError": "stratagem.errors",
    "LaunchError": "stratagem.errors",
    "StratagemError": "stratagem.errors",
    "resolve_cluster": "stratagem.cluster",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(
            f"module 'stratagem' has no attribute {name!r}; it has: {', '.join(sorted(_HOME))}"
        )
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])
