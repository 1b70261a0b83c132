"""The address by which other hosts reach this one, for libraries that listen on a port of their own."""

import ipaddress
import socket
from collections.abc import Iterable, Iterator

from stratagem.runtime.wire.addresses import address_family, is_here, resolve_host

_ANY_PORT = 9  # nothing is sent there: the kernel is only asked for the way


def own_address(own: str, others: Iterable[str]) -> str:
    """An IP address of this host that the other hosts can reach.

    The host's own name is not enough: on many machines it means 127.0.1.1, and in a container that of a service,
    which is on no interface here. Then the way to the others tells.

    Args:
        own: This host, as the cluster names it.
        others: The other hosts, as the cluster names them.

    Returns:
        An address of one of this host's interfaces; a loopback one only if the others are on this host too.
    """
    found = [address for address in _candidates(own, others) if is_here(address)]
    reachable = [address for address in found if not ipaddress.ip_address(address).is_loopback]
    return next(iter([*reachable, *found]), own)


def _candidates(own: str, others: Iterable[str]) -> Iterator[str]:
    yield from resolve_host(own)
    for other in others:
        for address in resolve_host(other):
            with socket.socket(address_family(address), socket.SOCK_DGRAM) as way:
                try:
                    way.connect((address, _ANY_PORT))
                except OSError:
                    continue
                yield way.getsockname()[0]
