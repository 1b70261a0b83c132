"""Open MPI: the ranks that `mpirun` started on one host become workers.

Open MPI tells a process its rank but not where the other ranks are, so more than one host cannot be resolved.
"""

from collections.abc import Mapping

from stratagem.cluster.address import Address
from stratagem.cluster.cluster_spec import ClusterSpec
from stratagem.cluster.roles import WORKER, ClusterConfig
from stratagem.cluster.sources.numbers import BASE_PORT, read_variable
from stratagem.errors import ClusterError

NAME = "Open MPI"
SIZE = "OMPI_COMM_WORLD_SIZE"

_RANK, _LOCAL_SIZE = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"


def is_present(environ: Mapping[str, str]) -> bool:
    """Return whether `mpirun` started several ranks; one alone is not a cluster."""
    return bool(environ.get(_RANK)) and environ.get(SIZE, "1") != "1"


def resolve(environ: Mapping[str, str]) -> ClusterConfig:
    """Make rank i worker i, at 127.0.0.1 and port `BASE_PORT` + i, if all ranks are on this host.

    Ranks on several hosts are an error, whose message shows the flags that say where the workers are.
    """
    size = read_variable(environ, SIZE, least=1)
    rank = read_variable(environ, _RANK)
    local_size = read_variable(environ, _LOCAL_SIZE, least=1)
    if rank >= size:
        raise ClusterError(f"{_RANK} is {rank}, but {SIZE} is {size}: ranks are numbered 0 to {size - 1}")
    if local_size != size:
        raise ClusterError(
            f"Open MPI runs {size} ranks, {local_size} of them on this host, and does not say where the others "
            "are. Name the hosts yourself, in the order of ranks: mpirun … sh -c 'python train.py "
            f"--worker_hosts=a:2222,b:2222 --job_name=worker --task_index=${_RANK}'; under Slurm, use srun"
        )
    workers = [str(Address("127.0.0.1", BASE_PORT + i)) for i in range(size)]
    return ClusterConfig(ClusterSpec({WORKER: workers}), WORKER, rank, source=NAME)
