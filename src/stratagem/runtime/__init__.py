"""A server per task, sessions, remote variables and shipped programs.

A map:

    server, roster                     the server that every task runs; which tasks are alive, finished or given up
    executor, variable_store           what a server does for clients: run programs, keep variables
    session                            a client's connection to a cluster
    remote_variable, remote_function   variables and functions on a task, as a client holds them
    peers                              the tasks of a cluster, by name
    programs                           functions as StableHLO: exported, verified, compiled
    wire                               calls between tasks
    allowed_imports                    the modules of the user's that a server may import
    fan_out                            several calls at once
    memory, host_memory                how much memory there is; buffers and views of it for JAX
    exits, stderr                      the end of this process; what it writes to standard error

Names are loaded on first use: the program inspector lives in this package and must not import JAX.
"""

from typing import TYPE_CHECKING

from stratagem.lazy import lazily

if TYPE_CHECKING:
    from stratagem.runtime.remote_function import RemoteFunction as RemoteFunction
    from stratagem.runtime.remote_variable import RemoteVariable as RemoteVariable
    from stratagem.runtime.server import Server as Server
    from stratagem.runtime.session import RemoteDevice as RemoteDevice
    from stratagem.runtime.session import Session as Session
    from stratagem.runtime.wire import TLS as TLS

# The same list for the interpreter; a test compares the two.
_HOMES = {
    "RemoteDevice": "stratagem.runtime.session",
    "RemoteFunction": "stratagem.runtime.remote_function",
    "RemoteVariable": "stratagem.runtime.remote_variable",
    "Server": "stratagem.runtime.server",
    "Session": "stratagem.runtime.session",
    "TLS": "stratagem.runtime.wire",
}

__getattr__, __dir__ = lazily(__name__, _HOMES)
