"""The wire: named calls with plain fields and tensors, between hosts and within one.

A map, from the outside in:

    peer, pool, dialing, leases    the calling end: calls, idle connections, making one, what is lent
    listener, guests, serving      the listening end: accepting, who is connected, answering calls
    calls, failures, counters      requests and replies, exceptions on their way back, what was done
    handshake, credentials, tls    who belongs: the secret, certificates, the protocol's version
    secret_file                    the file that the secret is in, which is to be its owner's alone
    identity                       which task of which run is expected there
    channels                       messages over a stream, tensors inline or in shared memory
    frames, layouts                the form of a message, and how its tensors lie in it
    dtypes, arrays                 the types of tensors, and memory for them
    boards                         tensors that several are sent alike
    streams, segments, addresses   sockets and shared memory
    limits, deadlines              how much, and how long
    waiting                        when the log says for whom, pauses between attempts
    foreign, rationed              errors of the system become ours; log lines that strangers cause
"""

from stratagem.runtime.wire.arrays import empty_aligned
from stratagem.runtime.wire.boards import Board, Edition
from stratagem.runtime.wire.calls import LATER, Caller, Handler, Reply, Request, Response
from stratagem.runtime.wire.counters import Snapshot
from stratagem.runtime.wire.credentials import Credentials
from stratagem.runtime.wire.dialing import SHARED_MEMORY
from stratagem.runtime.wire.dtypes import dtype_of, name_of
from stratagem.runtime.wire.frames import Fields
from stratagem.runtime.wire.handshake import PROTOCOL
from stratagem.runtime.wire.limits import Limits
from stratagem.runtime.wire.listener import Listener
from stratagem.runtime.wire.peer import Peer
from stratagem.runtime.wire.tls import TLS

__all__ = [
    "LATER",
    "PROTOCOL",
    "SHARED_MEMORY",
    "TLS",
    "Board",
    "Caller",
    "Credentials",
    "Edition",
    "Fields",
    "Handler",
    "Limits",
    "Listener",
    "Peer",
    "Reply",
    "Request",
    "Response",
    "Snapshot",
    "dtype_of",
    "empty_aligned",
    "name_of",
]
