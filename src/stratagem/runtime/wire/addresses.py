"""Where a task listens: `host:port`, as text and as a bound socket."""

import errno
import ipaddress
import logging
import socket
from collections.abc import Iterable, Sequence
from functools import cache

from stratagem import environment
from stratagem.cluster import Address
from stratagem.errors import AuthenticationError, ClusterError, TaskUnreachable
from stratagem.runtime.wire.error_translation import reason
from stratagem.runtime.wire.sockets import peer_process

_log = logging.getLogger("stratagem")
SCHEME = "sg://"
_BACKLOG = 512


def address_at(where: str | Address) -> Address:
    """Return the address of a target (`sg://host:port`) or of plain `host:port`."""
    return where if isinstance(where, Address) else Address.parse(where.removeprefix(SCHEME))


def address_family(address: str) -> socket.AddressFamily:
    """Return the family of sockets for an IP address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def resolve_host(host: str) -> list[str]:
    """Return the IP addresses of a host's name as this host resolves it, each once; none if it does not."""
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def is_here(address: str) -> bool:
    """Return whether an IP address is one of this host's."""
    with socket.socket(address_family(address)) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def listening_address(own: Address, others: Iterable[str]) -> Address:
    """Return where to listen so that the other tasks of a cluster reach this one, and as few strangers as possible do.

    That is the task's own address, if it is one of this host's. Otherwise it is all networks of this host: the address of a
    service in Kubernetes, or one behind NAT, is on no interface here.

    Args:
        own: This task, as the cluster names it.
        others: The hosts of the other tasks, as the cluster names them.
    """
    if own.host == "localhost":
        return own
    addresses, why = resolve_host(own.host), None
    if len(addresses) != 1:
        why = f"which means {' and '.join(addresses) or 'nothing'} on this host"
    elif not is_here(addresses[0]):
        why = f"which means {addresses[0]}, not an address of this host"
    elif _is_loopback(addresses[0]) and _is_name(own.host) and not _are_all_loopback(others):
        # On Debian a host's own name means 127.0.1.1 on the host itself; the other hosts know better.
        why = f"which means {addresses[0]} on this host, and perhaps another address elsewhere"
    if why is None:
        return own
    everywhere = "0.0.0.0" if any(":" not in each for each in addresses or [own.host]) else "::"
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
    """Return whether there are hosts, and all of them are this one, whatever they are called elsewhere."""
    resolved = [resolve_host(host) for host in dict.fromkeys(hosts)]
    return bool(resolved) and all(each and all(map(_is_loopback, each)) for each in resolved)


def bind(address: Address, share_port: bool = False) -> socket.socket:
    """Return a bound socket that does not listen yet; port 0 takes a free one.

    A port is shared (SO_REUSEPORT) only with a launcher that has reserved it: two servers that shared one by mistake would
    each get some of the calls.
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


@cache
def _launchers_socket() -> tuple[socket.socket, int] | None:
    """Return the socket that the launcher bound for this process, and its port; opened once, and closed by its user."""
    descriptor = environment.listen_fd()
    if descriptor is None:
        return None
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError:
        return None  # the launcher handed it to a parent of this process
    if sock.family != socket.AF_INET:
        sock.detach()  # a child of that parent: the number is another socket's here
        return None
    return sock, sock.getsockname()[1]


def socket_for(address: Address, others: Sequence[str]) -> socket.socket | Address:
    """Return the launcher's socket, if it is for this address; otherwise the address at which to bind one.

    Args:
        address: This task, as the cluster names it.
        others: The hosts of the other tasks, as the cluster names them.
    """
    handed_over = _launchers_socket()
    if handed_over is not None and handed_over[1] == address.port:
        sock = handed_over[0]
        if sock.fileno() < 0:  # an earlier server of this process has used it up
            return bind(address, share_port=True)
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise ClusterError(
                f"another server of this process listens at {address}; stop it first or, if a strategy has made it, use that "
                "strategy again: a process makes one, for all that it trains and evaluates"
            )
        return sock
    host = environment.listen_host()
    return listening_address(address, others) if host is None else Address(host, address.port)


def listen_on_host(name: str) -> socket.socket:
    """Return a listening socket in the abstract namespace: visible only within this host's network namespace."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind("\0" + name)
    sock.listen(_BACKLOG)
    return sock


def listen(sock: socket.socket, has_secret: bool, insecure: bool) -> Address:
    """Start listening on a bound socket and return its address; refuse an open address without a secret."""
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
    """Return a name for the far end of a connected socket, for logs."""
    try:
        if sock.family == socket.AF_UNIX:
            return f"process {peer_process(sock)[0]} on this host"
        return str(Address(*sock.getpeername()[:2]))
    except OSError:
        return "a connection that is gone"
