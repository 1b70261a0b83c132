"""A server per task, sessions, remote variables and shipped programs."""

from stratagem.runtime.function import RemoteFunction as RemoteFunction
from stratagem.runtime.remote_variable import RemoteVariable as RemoteVariable
from stratagem.runtime.server import Server as Server
from stratagem.runtime.session import RemoteDevice as RemoteDevice
from stratagem.runtime.session import Session as Session
from stratagem.runtime.wire import TLS as TLS
