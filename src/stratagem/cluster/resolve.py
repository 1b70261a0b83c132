"""Finds the cluster that this process was started in, from the command line or the environment."""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from stratagem.cluster.roles import ClusterConfig
from stratagem.cluster.sources import flags, open_mpi, slurm, tf_config
from stratagem.cluster.sources.kubeflow import JAXJOB, TRAINER
from stratagem.environment import current

_log = logging.getLogger("stratagem")


class _Source(NamedTuple):
    name: str
    is_present: bool
    resolve: Callable[[], ClusterConfig | None]


def resolve_cluster(
    argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> ClusterConfig | None:
    """Find out which cluster this process belongs to, and which of its tasks it is.

    The first of these that is present decides alone; the log (level info) says which, and which others were
    present and ignored:

    1. flags: `--worker_hosts`, `--ps_hosts`, `--chief_hosts`, `--evaluator_hosts`, `--job_name`,
       `--task_index` (or `--task_id`); other flags are not looked at.
    2. `TF_CONFIG`, as TensorFlow and Kubeflow's TFJob write it. An empty cluster in it means a local run.
    3. Kubeflow's JAXJob: `COORDINATOR_ADDRESS`, `COORDINATOR_PORT`, `NUM_PROCESSES`, `PROCESS_ID`.
    4. Kubeflow Trainer: `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`, `JAX_PROCESS_ID`.
    5. Slurm: a step of several tasks (`srun`). Task i is worker i.
    6. Open MPI: several ranks (`mpirun`) on one host. Rank i is worker i.

    Args:
        argv: The command line, without the program; `None` means this process's.
        environ: The environment; `None` means this process's.

    Returns:
        The cluster and this task, or `None` if none of these is present.

    Raises:
        ClusterError: The deciding source is wrong or incomplete; the message shows where.

    Example:
        >>> config = resolve_cluster(["--worker_hosts=a:2222,b:2222", "--job_name=worker", "--task_index=1"], {})
        >>> config.task_index, config.is_chief, config.source
        (1, False, 'flags')
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    variables = current(environ)
    sources = [
        _Source(flags.NAME, flags.is_present(arguments), lambda: flags.resolve(arguments)),
        _Source(tf_config.NAME, tf_config.is_present(variables), lambda: tf_config.resolve(variables)),
        _Source(JAXJOB.name, JAXJOB.is_present(variables), lambda: JAXJOB.resolve(variables)),
        _Source(TRAINER.name, TRAINER.is_present(variables), lambda: TRAINER.resolve(variables)),
        _Source(slurm.NAME, slurm.is_present(variables), lambda: slurm.resolve(variables)),
        _Source(open_mpi.NAME, open_mpi.is_present(variables), lambda: open_mpi.resolve(variables)),
    ]
    present = [source for source in sources if source.is_present]
    if not present:
        return None
    winner, *others = present
    config = winner.resolve()
    task = "no cluster, a local run" if config is None else f"this is {config.job_name} {config.task_index}"
    ignored = f"; ignored: {', '.join(other.name for other in others)}" if others else ""
    _log.info("Cluster from %s: %s%s", winner.name, task, ignored)
    return config
