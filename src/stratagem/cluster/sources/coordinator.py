"""Clusters of JAX processes that are told the address of process 0, their number, and their own place.

Kubernetes names the pods of such a job by number, so the other addresses follow from the first. Where the
coordinator's host is not of that form, only what is known is said.
"""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from stratagem.cluster.address import Address
from stratagem.cluster.config import ClusterConfig
from stratagem.cluster.roles import WORKER
from stratagem.cluster.sources.integers import read_variable
from stratagem.cluster.spec import ClusterSpec
from stratagem.errors import ClusterError

_WITH_PORT = re.compile(r"(\[.*\]|[^:\[\]]*):[0-9]+")
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")


@dataclass(frozen=True)
class Variables:
    """The environment variables of one system, and how it names its hosts.

    Attributes:
        source: the system's name.
        address: holds the coordinator's host, or host and port.
        port: holds the coordinator's port, where `address` does not.
        count: holds the number of processes.
        index: holds the number of this process.
        first_host: matches process 0's host, with groups for what stands before and after its number.
    """

    source: str
    address: str
    port: str
    count: str
    index: str
    first_host: re.Pattern[str]

    def are_present(self, environ: Mapping[str, str]) -> bool:
        """Whether they describe a cluster. An address alone may be meant for something else."""
        return bool(environ.get(self.address)) and (self.count in environ or self.index in environ)


def resolve(environ: Mapping[str, str], variables: Variables) -> ClusterConfig:
    """Process i is worker i; the coordinator is worker 0, and the chief.

    If the coordinator's host has the number 0 where the system puts it, the cluster is complete: the other
    hosts have their own numbers there, and the same port. If not, it holds only worker 0 and this worker, the
    latter on this host with port 0, any free one; `announced_workers` says how many there are, and the others
    must be learnt from worker 0.
    """
    count = read_variable(environ, variables.count, least=1)
    index = read_variable(environ, variables.index)
    if index >= count:
        raise ClusterError(
            f"{variables.index} is {index}, but {variables.count} is {count}: "
            f"processes are numbered 0 to {count - 1}"
        )
    first = _coordinator(environ, variables)
    numbered = variables.first_host.fullmatch(first.host)
    if numbered or count == 1:
        hosts = [f"{numbered[1]}{i}{numbered[2]}" for i in range(count)] if numbered else [first.host]
        cluster = ClusterSpec({WORKER: [str(Address(host, first.port)) for host in hosts]})
        return ClusterConfig(cluster, WORKER, index, source=variables.source)
    here = first.host if _LOOPBACK.fullmatch(first.host) else environ.get("HOSTNAME") or socket.gethostname()
    known = {index: str(Address(here, 0)), 0: str(first)}
    return ClusterConfig(
        ClusterSpec({WORKER: known}), WORKER, index, source=variables.source, announced_workers=count
    )


def _coordinator(environ: Mapping[str, str], variables: Variables) -> Address:
    text = environ[variables.address]
    try:
        if variables.port in environ and not _WITH_PORT.fullmatch(text):
            return Address(text.strip("[]"), read_variable(environ, variables.port))
        return Address.parse(text)
    except ClusterError as problem:
        raise ClusterError(
            f"{variables.address}: {problem}. The right form: {variables.address}=host and "
            f"{variables.port}=2222, or {variables.address}=host:2222"
        ) from None
