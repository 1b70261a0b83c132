"""Every exception that Stratagem raises, in one tree.

StratagemError
├── ClusterError (ValueError)              a cluster, a task or TF_CONFIG that cannot be meant
├── DeviceError
│   ├── DeviceSpecError (ValueError)       a device string that is not one
│   ├── DeviceNotFoundError (LookupError)  a well-formed name of a device that is not there
│   └── ConfigurationError (RuntimeError)  `configure` with wrong values, or too late
└── LaunchError                            a job that cannot be started as asked

Each message says what was got, what is allowed, and what to do next. Foreign errors (sockets, JAX, the
operating system) are turned into one of these in one place per layer.
"""


class StratagemError(Exception):
    """The root: `except sg.StratagemError` catches all that the library raises by itself."""


class ClusterError(StratagemError, ValueError):
    """A description of a cluster, or of a task in it, that cannot be meant."""


class DeviceError(StratagemError):
    """Something is wrong with a device: its name, its absence, or its configuration."""


class DeviceSpecError(DeviceError, ValueError):
    """A device string or field that does not follow the grammar."""


class DeviceNotFoundError(DeviceError, LookupError):
    """A well-formed name of a device that this process does not have."""


class ConfigurationError(DeviceError, RuntimeError):
    """`configure` was called with values that cannot work, or after JAX had started its backends."""


class LaunchError(StratagemError):
    """A job that cannot be started as asked."""
