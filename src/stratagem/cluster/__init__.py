"""Who takes part in a job: the cluster's tasks and addresses, and which of them this process is.

No JAX and no sockets here, so that the command line and the launcher can ask cheaply.

A map, from the outside in:

    resolve                  finds the cluster that this process was started in
    sources                  one module per place that a cluster can be read from
    start_advice             advice on how to start a job of another shape
    roles                    the jobs that there are, the rules for them, and which task this process is
    cluster_spec, address    the tasks of a cluster and their addresses
    wording                  what each source calls the parts of a cluster, for messages
"""

from stratagem.cluster.address import Address
from stratagem.cluster.cluster_spec import ClusterSpec, Task
from stratagem.cluster.resolve import resolve_cluster
from stratagem.cluster.roles import ClusterConfig
from stratagem.cluster.start_advice import how_to_start

__all__ = ["Address", "ClusterConfig", "ClusterSpec", "Task", "how_to_start", "resolve_cluster"]
