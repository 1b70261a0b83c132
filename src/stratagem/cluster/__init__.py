"""Who takes part in a job: the cluster's tasks and addresses, and which of them this process is.

No JAX and no sockets here, so that the command line and the launcher can ask cheaply.
"""

from stratagem.cluster.address import Address
from stratagem.cluster.config import ClusterConfig
from stratagem.cluster.resolve import resolve_cluster
from stratagem.cluster.spec import ClusterSpec, Task
from stratagem.cluster.starting import how_to_start

__all__ = ["Address", "ClusterConfig", "ClusterSpec", "Task", "how_to_start", "resolve_cluster"]
