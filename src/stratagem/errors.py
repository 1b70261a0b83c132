"""Every exception that Stratagem raises, in one tree.

StratagemError
├── ClusterError (ValueError)              a cluster, a task or TF_CONFIG that cannot be meant
├── DeviceError
│   ├── DeviceSpecError (ValueError)       a device string that is not one
│   ├── DeviceNotFoundError (LookupError)  a well-formed name of a device that is not there
│   └── ConfigurationError (RuntimeError)  `configure` with wrong values, or too late
├── RemoteError                            something went wrong between two tasks; `.task` names the far one
│   ├── TaskUnreachable (ConnectionError)  no connection to a task within the deadline
│   ├── TaskLost (ConnectionError)         the connection broke, or the task died, during a call
│   ├── WorkerLost (ConnectionError)       a worker of a synchronous group died, left or did not answer; or all are lost
│   ├── TaskReplaced                       another start of this task has taken its place
│   ├── RolledBack                         parameter servers went back to an earlier step, or begin anew
│   ├── DeadlineExceeded (TimeoutError)    the task did not answer in time
│   ├── AuthenticationError                wrong or missing secret, or TLS that does not fit
│   ├── ProtocolError                      another protocol version, or bytes that are no frame
│   │   └── UnknownCall                    a call that the task does not answer
│   ├── LimitExceeded                      more bytes, connections or variables than the server allows
│   ├── ProgramRefused                     a shipped program with an operation that is not allowed
│   ├── VariableNotFound (LookupError)     no variable of that name on the task
│   ├── VariableMismatch (ValueError)      a value of another shape or dtype than its variable
│   └── RemoteCallError                    the far side raised something of its own; its traceback is text
├── StrategyError (ValueError)             a strategy asked for what it cannot do
├── ClosureCancelled (RuntimeError)        a closure that will not run: another failed, or all is over
├── DataError (ValueError)                 a batch or a file that is not what it should be
├── KeepError                              a snapshot, checkpoint or summary that cannot be written, or is damaged
├── MissingExtra (ImportError)             an optional package that is not installed; the message says which
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


class RemoteError(StratagemError):
    """Something went wrong between two tasks.

    Attributes:
        task: The far task's name, such as `/job:ps/task:0`, once it is known.
        remote_traceback: The far side's traceback as text, if the error happened there.
    """

    task: str | None = None
    remote_traceback: str | None = None


class TaskUnreachable(RemoteError, ConnectionError):
    """No connection to a task could be made within the deadline."""


class TaskLost(RemoteError, ConnectionError):
    """The connection broke, or the task died, during a call."""


class WorkerLost(RemoteError, ConnectionError):
    """A worker of a synchronous group died, left or did not answer in time, and `task` names it; or all are lost."""


class TaskReplaced(RemoteError):
    """Another start of this task, a newer one, has taken its place: this one is to end."""


class RolledBack(RemoteError):
    """Parameter servers went back to an earlier step, or begin anew: what was pushed since is void."""


class DeadlineExceeded(RemoteError, TimeoutError):
    """The task did not answer in time."""


class AuthenticationError(RemoteError):
    """The two sides do not share a secret, or their TLS settings do not fit."""


class ProtocolError(RemoteError):
    """The far side speaks another version of the protocol, or sent bytes that are no frame."""


class UnknownCall(ProtocolError):
    """A call that the task does not answer, or not yet."""


class LimitExceeded(RemoteError):
    """More bytes, connections or variables than the server allows."""


class ProgramRefused(RemoteError):
    """A shipped program has an operation, a custom call or a size that the server does not allow."""


class VariableNotFound(RemoteError, LookupError):
    """The task holds no variable of that name."""


class VariableMismatch(RemoteError, ValueError):
    """A value has another shape or dtype than the variable that it is meant for."""


class RemoteCallError(RemoteError):
    """The far side raised an error that is not one of ours; `remote_traceback` has its text."""


class StrategyError(StratagemError, ValueError):
    """A strategy was asked for what it cannot do."""


class ClosureCancelled(StratagemError, RuntimeError):
    """A scheduled closure will not run: another one failed, or the coordinator was closed."""


class DataError(StratagemError, ValueError):
    """A batch or a file that is not what it should be."""


class KeepError(StratagemError):
    """A snapshot or checkpoint that cannot be written, or is missing, unfinished or damaged."""


class MissingExtra(StratagemError, ImportError):
    """Something was asked for that needs an optional package, which is not installed."""


class LaunchError(StratagemError):
    """A job that cannot be started as asked."""
