"""Kubeflow's JAX jobs: processes that know the address of process 0, their number, and their own index.

Kubernetes numbers the hosts of such a job, so the other addresses follow from the first. If the coordinator's host is
not of that form, the cluster holds only the workers that are known.
"""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from stratagem.cluster.address import Address
from stratagem.cluster.cluster_spec import ClusterSpec
from stratagem.cluster.roles import WORKER, ClusterConfig
from stratagem.cluster.sources.numbers import read_variable
from stratagem.errors import ClusterError

_WITH_PORT = re.compile(r"(\[.*\]|[^:\[\]]*):[0-9]+")
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")


@dataclass(frozen=True)
class KubeflowJob:
    """A kind of job: its environment variables, and how it names its hosts.

    Attributes:
        name: The kind's name.
        address_variable: Holds the coordinator's host, or host and port.
        port_variable: Holds the coordinator's port, where `address_variable` does not.
        count_variable: Holds the number of processes.
        index_variable: Holds the number of this process.
        first_host: Matches process 0's host, with groups for what stands before and after its number.
    """

    name: str
    address_variable: str
    port_variable: str
    count_variable: str
    index_variable: str
    first_host: re.Pattern[str]

    def is_present(self, environ: Mapping[str, str]) -> bool:
        """Return whether the variables describe a cluster. An address alone may be meant for something else."""
        return bool(environ.get(self.address_variable)) and (
            self.count_variable in environ or self.index_variable in environ
        )

    def resolve(self, environ: Mapping[str, str]) -> ClusterConfig:
        """Make process i worker i; the coordinator is worker 0, and the chief.

        If the coordinator's host has the number 0 where the job's kind puts it, the cluster is complete: the other
        hosts have their own numbers there, and the same port. If not, it holds only worker 0 and this worker, the
        latter on this host with port 0, any free one; `announced_workers` says how many there are, and the others
        must be learnt from worker 0.
        """
        count = read_variable(environ, self.count_variable, least=1)
        index = read_variable(environ, self.index_variable)
        if index >= count:
            raise ClusterError(
                f"{self.index_variable} is {index}, but {self.count_variable} is {count}: "
                f"processes are numbered 0 to {count - 1}"
            )
        first = self._coordinator(environ)
        numbered = self.first_host.fullmatch(first.host)
        if numbered or count == 1:
            hosts = [f"{numbered[1]}{i}{numbered[2]}" for i in range(count)] if numbered else [first.host]
            cluster = ClusterSpec({WORKER: [str(Address(host, first.port)) for host in hosts]})
            return ClusterConfig(cluster, WORKER, index, source=self.name)
        is_local = _LOOPBACK.fullmatch(first.host)
        here = first.host if is_local else environ.get("HOSTNAME") or socket.gethostname()
        known = {index: str(Address(here, 0)), 0: str(first)}
        return ClusterConfig(
            ClusterSpec({WORKER: known}), WORKER, index, source=self.name, announced_workers=count
        )

    def _coordinator(self, environ: Mapping[str, str]) -> Address:
        address, port = self.address_variable, self.port_variable
        text = environ[address]
        try:
            if port in environ and not _WITH_PORT.fullmatch(text):
                return Address(text.strip("[]"), read_variable(environ, port))
            return Address.parse(text)
        except ClusterError as problem:
            raise ClusterError(
                f"{address}: {problem}. The right form: {address}=host and {port}=2222, or {address}=host:2222"
            ) from None


JAXJOB = KubeflowJob(
    "Kubeflow JAXJob",
    "COORDINATOR_ADDRESS",
    "COORDINATOR_PORT",
    "NUM_PROCESSES",
    "PROCESS_ID",
    re.compile(r"(.+-worker-)0((?:\..+)?)"),
)
"""The training operator's JAXJob, whose worker i is reached at the service `<job>-worker-<i>`."""

TRAINER = KubeflowJob(
    "Kubeflow Trainer",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_PORT",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    re.compile(r"(.+-node-0-)0((?:\..+)?)"),
)
"""Kubeflow Trainer (version 2), whose process i runs in the pod `<job>-node-0-<i>.<job>`."""
