"""Every exception that Stratagem raises, in one tree.

StratagemError
├── ClusterError (ValueError)              an invalid description of a cluster or task, such as in TF_CONFIG
├── DeviceError
│   ├── DeviceSpecError (ValueError)       an invalid device string
│   ├── DeviceNotFoundError (LookupError)  a valid name of a device that does not exist
│   └── ConfigurationError (RuntimeError)  `configure` with wrong values, or too late
├── RemoteError                            a failure between two tasks; `.task` names the far one
│   ├── TaskUnreachable (ConnectionError)  no connection to a task within the deadline
│   ├── TaskLost (ConnectionError)         the connection broke or the task died during a call
│   ├── WorkerLost (ConnectionError)       a worker of a synchronous group died, left or did not answer, or all were lost
│   ├── TaskReplaced                       a newer start of this task has replaced it
│   ├── RolledBack                         parameter servers went back to an earlier step, or started again
│   ├── DeadlineExceeded (TimeoutError)    the task did not answer in time
│   ├── AuthenticationError                wrong or missing secret, or TLS that does not fit
│   ├── ProtocolError                      another protocol version, or bytes that are not a frame
│   │   └── UnknownCall                    a call that the task does not answer
│   ├── LimitExceeded                      more bytes, connections or variables than the server allows
│   ├── ProgramRefused                     a shipped program with an operation that is not allowed
│   ├── VariableNotFound (LookupError)     no variable of that name on the task
│   ├── VariableMismatch (ValueError)      a value of another shape or dtype than its variable
│   └── RemoteCallError                    the far side raised something of its own; its traceback is text
├── StrategyError (ValueError)             a request that a strategy cannot fulfil
├── ClosureCancelled (RuntimeError)        a closure that will not run: another failed, or the coordinator was closed
├── DataError (ValueError)                 an invalid batch or file
├── KeepError                              a snapshot, checkpoint or summary that cannot be written, or is damaged
├── MissingExtra (ImportError)             an optional package, named in the message, that is not installed
└── LaunchError                            a job that cannot be started as asked

Each message says what was got, what is allowed, and what to do next. Foreign errors (sockets, JAX, the operating system) are
translated into one of these in one place per layer.
"""


class StratagemError(Exception):
    """The root: `except sg.StratagemError` catches every error that the library itself raises."""


class ClusterError(StratagemError, ValueError):
    """An invalid description of a cluster, or of a task in it."""


class DeviceError(StratagemError):
    """Something is wrong with a device: its name, its absence, or its configuration."""


class DeviceSpecError(DeviceError, ValueError):
    """An invalid device string or field."""


class DeviceNotFoundError(DeviceError, LookupError):
    """A valid name of a device that this process does not have."""


class ConfigurationError(DeviceError, RuntimeError):
    """`configure` was called with values that cannot work, or after JAX had started its backends."""


class RemoteError(StratagemError):
    """A failure between two tasks.

    Attributes:
        task: The far task's name, such as `/job:ps/task:0`, once it is known.
        remote_traceback: The far side's traceback as text, if the error happened there.
    """

    task: str | None = None
    remote_traceback: str | None = None


class TaskUnreachable(RemoteError, ConnectionError):
    """No connection to a task could be made within the deadline."""


class TaskLost(RemoteError, ConnectionError):
    """The connection broke or the task died during a call."""


class WorkerLost(RemoteError, ConnectionError):
    """A worker of a synchronous group died, left or did not answer in time, and `task` names it; or all were lost."""


class TaskReplaced(RemoteError):
    """A newer start of this task has replaced it: this one has to end."""


class RolledBack(RemoteError):
    """Parameter servers went back to an earlier step, or started again: pushes after that step are void."""


class DeadlineExceeded(RemoteError, TimeoutError):
    """The task did not answer in time."""


class AuthenticationError(RemoteError):
    """The two sides do not share a secret, or their TLS settings do not fit."""


class ProtocolError(RemoteError):
    """The far side speaks another version of the protocol, or sent bytes that are not a frame."""


class UnknownCall(ProtocolError):
    """A call that the task does not answer, or not yet."""


class LimitExceeded(RemoteError):
    """More bytes, connections or variables than the server allows."""


class ProgramRefused(RemoteError):
    """A shipped program has an operation, a custom call or a size that the server does not allow."""


class VariableNotFound(RemoteError, LookupError):
    """The task holds no variable of that name."""


class VariableMismatch(RemoteError, ValueError):
    """A value has another shape or dtype than its variable."""


class RemoteCallError(RemoteError):
    """The far side raised an error that is not one of the library's; `remote_traceback` has its traceback as text."""


class StrategyError(StratagemError, ValueError):
    """A request that a strategy cannot fulfil."""


class ClosureCancelled(StratagemError, RuntimeError):
    """A scheduled closure will not run: another failed, or the coordinator was closed."""


class DataError(StratagemError, ValueError):
    """An invalid batch or file."""


class KeepError(StratagemError):
    """A snapshot, checkpoint or summary that cannot be written, or is missing, incomplete or damaged."""


class MissingExtra(StratagemError, ImportError):
    """A feature that needs an optional package that is not installed."""


class LaunchError(StratagemError):
    """A job that cannot be started as asked."""
