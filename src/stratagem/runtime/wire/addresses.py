"""Where a task listens: `host:port`, in text and as a bound socket."""

import errno
import ipaddress
import logging
import socket
from collections.abc import Iterable

from stratagem.cluster import Address
from stratagem.errors import AuthenticationError, TaskUnreachable
from stratagem.runtime.wire.error_translation import reason
from stratagem.runtime.wire.sockets import peer_process

_log = logging.getLogger("stratagem")
SCHEME = "sg://"
_BACKLOG = 512


def address_at(where: str | Address) -> Address:
    """The address that a target (`sg://host:port`) or plain `host:port` means."""
    return where if isinstance(where, Address) else Address.parse(where.removeprefix(SCHEME))


def address_family(address: str) -> socket.AddressFamily:
    """Return the family of sockets for an IP address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def resolve_host(host: str) -> list[str]:
    """The IP addresses that a host's name means on this host, each once; none if it means nothing here."""
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def is_here(address: str) -> bool:
    """Whether an IP address is one of this host's."""
    with socket.socket(address_family(address)) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def listening_address(own: Address, others: Iterable[str]) -> Address:
    """Where to listen so that the other tasks of a cluster reach this one, and as few strangers as possible do.

    That is the task's own address, if it is one of this host's. Else it is all networks of this host: a service's
    address in Kubernetes, or one behind NAT, is on no interface here.

    Args:
        own: This task, as the cluster names it.
        others: The hosts of the other tasks, as the cluster names them.
    """
    if own.host == "localhost":
        return own
    found, why = resolve_host(own.host), None
    if len(found) != 1:
        why = f"which means {' and '.join(found) or 'nothing'} on this host"
    elif not is_here(found[0]):
        why = f"which means {found[0]}, no address of this host"
    elif _is_loopback(found[0]) and _is_name(own.host) and not _are_all_loopback(others):
        # Debian has a host's own name mean 127.0.1.1 on the host itself; the other hosts know better.
        why = f"which means {found[0]} on this host, and perhaps another address elsewhere"
    if why is None:
        return own
    everywhere = "0.0.0.0" if any(":" not in each for each in found or [own.host]) else "::"
    _log.info("%s, %s: listening on all networks of this host", own, why)
    return Address(everywhere, own.port)


def _is_name(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _are_all_loopback(hosts: Iterable[str]) -> bool:
    """Whether there are any, and all of them are on this host, whatever it is called elsewhere."""
    found = [resolve_host(host) for host in dict.fromkeys(hosts)]
    return bool(found) and all(each and all(map(_is_loopback, each)) for each in found)


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
    if not (has_secret or insecure or _is_loopback(host)):
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
