"""A server per task, sessions, remote variables and shipped programs.

Names are loaded when first used: the process that inspects foreign programs lives in here and needs no JAX.
"""

from typing import TYPE_CHECKING

from stratagem.lazy import lazily

if TYPE_CHECKING:
    from stratagem.runtime.function import RemoteFunction as RemoteFunction
    from stratagem.runtime.remote_variable import RemoteVariable as RemoteVariable
    from stratagem.runtime.server import Server as Server
    from stratagem.runtime.session import RemoteDevice as RemoteDevice
    from stratagem.runtime.session import Session as Session
    from stratagem.runtime.wire import TLS as TLS

# The same list as above, for the interpreter: a test holds the two together.
_HOMES = {
    "RemoteDevice": "stratagem.runtime.session",
    "RemoteFunction": "stratagem.runtime.function",
    "RemoteVariable": "stratagem.runtime.remote_variable",
    "Server": "stratagem.runtime.server",
    "Session": "stratagem.runtime.session",
    "TLS": "stratagem.runtime.wire",
}

__getattr__, __dir__ = lazily(__name__, _HOMES)
