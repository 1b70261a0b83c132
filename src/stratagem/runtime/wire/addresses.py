"""Where a task listens: `host:port`, in text and as a bound socket."""

import errno
import ipaddress
import socket

from stratagem.cluster import Address
from stratagem.errors import AuthenticationError, TaskUnreachable
from stratagem.runtime.wire.foreign import reason
from stratagem.runtime.wire.streams import peer_process

SCHEME = "sg://"
_BACKLOG = 512


def address_at(where: str | Address) -> Address:
    """The address that a target (`sg://host:port`) or plain `host:port` means."""
    return where if isinstance(where, Address) else Address.parse(where.removeprefix(SCHEME))


def bind(address: Address, share_port: bool = False) -> socket.socket:
    """A bound socket, not listening yet; port 0 takes a free one.

    A port is shared (SO_REUSEPORT) only with a launcher that has reserved it: two servers that shared one by
    mistake would each get some of the calls.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise TaskUnreachable(f"cannot listen at {address}: {reason(error)}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(where)
    except OSError as error:
        sock.close()
        why = reason(error)
        if error.errno == errno.EADDRINUSE:
            why = (
                f"another process has port {address.port}, perhaps a server of an earlier job: `ss -ltnp 'sport = "
                f":{address.port}'` shows which. End it, or give this task another port"
            )
        raise TaskUnreachable(f"cannot listen at {address}: {why}") from error
    return sock


def listen_on_host(name: str) -> socket.socket:
    """A listening socket in the abstract namespace: seen only within this host's network namespace."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind("\0" + name)
    sock.listen(_BACKLOG)
    return sock


def listen(sock: socket.socket, has_secret: bool, insecure: bool) -> Address:
    """Start listening on a bound socket; refused on an open address without a secret."""
    host, port = sock.getsockname()[:2]
    address = Address(host, port)
    if not (has_secret or insecure or ipaddress.ip_address(host.partition("%")[0]).is_loopback):
        raise AuthenticationError(
            f"refused to listen at {address} without a secret, since whoever reaches it could run programs: set "
            "STRATAGEM_SECRET (or STRATAGEM_SECRET_FILE, or give secret=), listen on 127.0.0.1, or allow it with "
            "insecure=True (--insecure)"
        )
    sock.listen(_BACKLOG)
    return address


def describe(sock: socket.socket) -> str:
    """The far end of a connected socket, for logs."""
    try:
        if sock.family == socket.AF_UNIX:
            return f"process {peer_process(sock)[0]} on this host"
        return str(Address(*sock.getpeername()[:2]))
    except OSError:
        return "a connection that is gone"
