"""Sharing the cores of a host among tasks of one job: each worker has cores of its own, and a server works on those of its caller.

Threads that wake each other across cores, and caches that have to be filled again, cost a worker with small steps a
fifth of its time; so workers are bound to cores, as `mpirun` does it. A process that a scheduler has already bound
is left alone.
"""

import logging
import os
from collections.abc import Sequence
from contextlib import suppress

from stratagem.cluster import Address, ClusterConfig
from stratagem.devices.backend import compute_in_calling_thread, limit_threads
from stratagem.environment import pins_cores

_log = logging.getLogger(__name__)
_TRAINING = ("chief", "worker")


def share_host(config: ClusterConfig) -> None:
    """Keep this task off the cores on which others of its job compute. Call this before JAX starts."""
    own = Address.parse(config.address or "").host
    tasks = [task for task in config.cluster.tasks() if Address.parse(task.address).host == own]
    workers = [task for task in tasks if task.job in _TRAINING]
    if config.job_name not in _TRAINING:
        limit_threads(max(1, _core_count() - len(workers)))
        compute_in_calling_thread()
        return
    position = [(task.job, task.index) for task in workers].index((config.job_name, config.task_index))
    cores = _bind_to_share(position, len(workers))
    if len(tasks) > len(workers):
        _yield_to_servers()
    if len(tasks) > 1 and cores == 1:
        limit_threads(1)
        compute_in_calling_thread()


def stay_with(process: int) -> None:
    """Bind the calling thread to the cores of another process of this host, which waits while the thread works for it.

    Elsewhere it would take a core from a third process, and what the other has just written would be in the wrong
    caches. Has no effect unless the other process is bound and this one is not.
    """
    if not hasattr(os, "sched_setaffinity") or not pins_cores():
        return
    with suppress(OSError):  # it has ended, or belongs to another user
        theirs = os.sched_getaffinity(process)
        if theirs < os.sched_getaffinity(0):
            os.sched_setaffinity(0, theirs)


def share_of_cores(cores: Sequence[int], index: int, count: int) -> list[int]:
    """Return the part of `cores` for process `index` of `count`: neighbours, about as many for each.

    Example:
        >>> share_of_cores([0, 1, 2, 3, 4], 1, 2)
        [2, 3, 4]
    """
    return list(cores[index * len(cores) // count : (index + 1) * len(cores) // count])


def _core_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _bind_to_share(index: int, count: int) -> int:
    """Bind this thread, and all that it starts, to its part of the machine's cores. Return how many it should use.

    It stays unbound if the user wishes so, if it is already bound, if there are not enough cores for all, and on
    systems that cannot do it.
    """
    available = _core_count()
    fair = max(1, available // count)
    if not hasattr(os, "sched_setaffinity") or not pins_cores():
        return fair
    if available != os.cpu_count() or not 1 < count <= available:
        return fair
    share = share_of_cores(sorted(os.sched_getaffinity(0)), index, count)
    os.sched_setaffinity(0, share)
    _log.info(
        "process %d of %d on this host keeps to cores %s (STRATAGEM_PIN=off lets it use all)",
        index,
        count,
        share,
    )
    return len(share)


def _yield_to_servers() -> None:
    """Let a worker that wakes up wait for the server that runs on its core, which others wait for too.

    Linux's policy for computation does this; the worker's share of the core remains what it was.
    """
    if pins_cores() and hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
