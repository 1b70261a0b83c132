"""Named calls with plain fields and tensors, between hosts and within one.

A map, from the outside in:

    peer, dialing              the calling end: calls; making connections and keeping idle ones
    listener, answering        the listening end: accepting connections; answering the calls of each
    calls                      requests, replies and responses
    handshake, credentials     authentication: the secret, certificates, the version of the protocol
    channels                   messages over a connection, with tensors inline or in shared memory
    frames, limits             the form of a message; how much of it is accepted
    arrays                     element types, and memory for tensors
    sockets, shared_memory     what carries the bytes
    addresses                  where a task listens
    waiting                    deadlines, pauses between attempts, when to log that a task waits
    error_translation          foreign errors become ours; handlers' errors travel to the caller
"""

from stratagem.runtime.wire.answering import ListenerStatus
from stratagem.runtime.wire.arrays import dtype_of, empty_aligned, name_of
from stratagem.runtime.wire.calls import LATER, Caller, Handler, Reply, Request, Response
from stratagem.runtime.wire.credentials import TLS, Credentials
from stratagem.runtime.wire.dialing import SHARED_MEMORY
from stratagem.runtime.wire.frames import Fields
from stratagem.runtime.wire.handshake import PROTOCOL
from stratagem.runtime.wire.limits import Limits
from stratagem.runtime.wire.listener import Listener
from stratagem.runtime.wire.peer import Peer
from stratagem.runtime.wire.shared_memory import Broadcast, BroadcastBuffers

__all__ = [
    "LATER",
    "PROTOCOL",
    "SHARED_MEMORY",
    "TLS",
    "Broadcast",
    "BroadcastBuffers",
    "Caller",
    "Credentials",
    "Fields",
    "Handler",
    "Limits",
    "Listener",
    "ListenerStatus",
    "Peer",
    "Reply",
    "Request",
    "Response",
    "dtype_of",
    "empty_aligned",
    "name_of",
]
