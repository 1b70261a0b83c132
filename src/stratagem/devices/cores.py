"""How the tasks of one job share a host: each worker keeps to cores of its own, a server works on those of who waits.

Threads that wake each other across cores, and caches that have to be filled again, cost a worker with small steps a
fifth of its time; so workers are bound, as `mpirun` does it. Only where nobody has bound the process before: a
scheduler that did knows better.
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
    """See to it that this task does not take the cores on which others of its job compute; before JAX starts."""
    own = Address.parse(config.address or "").host
    tasks = [task for task in config.cluster.tasks() if Address.parse(task.address).host == own]
    workers = [task for task in tasks if task.job in _TRAINING]
    if config.job_name not in _TRAINING:
        limit_threads(max(1, _core_count() - len(workers)))
        compute_in_calling_thread()
        return
    place = [(task.job, task.index) for task in workers].index((config.job_name, config.task_index))
    cores = _keep_to_share(place, len(workers))
    if len(tasks) > len(workers):
        _let_servers_go_first()
    if len(tasks) > 1 and cores == 1:
        limit_threads(1)
        compute_in_calling_thread()


def stay_with(process: int) -> None:
    """Bind the calling thread to the cores of another process of this host, for which it works while that one waits.

    Elsewhere it would take a core from a third one, and what the other has just written would be in the wrong caches.
    Without effect unless both are processes that may be bound: the other one is, and this one is not.
    """
    if not hasattr(os, "sched_setaffinity") or not pins_cores():
        return
    with suppress(OSError):  # it has ended, or is not ours to ask
        theirs = os.sched_getaffinity(process)
        if theirs < os.sched_getaffinity(0):
            os.sched_setaffinity(0, theirs)


def share_of_cores(cores: Sequence[int], index: int, count: int) -> list[int]:
    """The part of `cores` for process `index` of `count`: neighbours, about as many for each.

    Example:
        >>> share_of_cores([0, 1, 2, 3, 4], 1, 2)
        [2, 3, 4]
    """
    return list(cores[index * len(cores) // count : (index + 1) * len(cores) // count])


def _core_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _keep_to_share(index: int, count: int) -> int:
    """Bind this thread, and all that it starts, to its part of the machine's cores; how many it should use.

    It stays unbound if the user wishes so, if somebody has bound it before, where there are not enough cores for
    all, and on systems that cannot do it.
    """
    available = _core_count()
    wanted = max(1, available // count)
    if not hasattr(os, "sched_setaffinity") or not pins_cores():
        return wanted
    if available != os.cpu_count() or not 1 < count <= available:
        return wanted
    share = share_of_cores(sorted(os.sched_getaffinity(0)), index, count)
    os.sched_setaffinity(0, share)
    _log.info(
        "process %d of %d on this host keeps to cores %s (STRATAGEM_PIN=off: to all)", index, count, share
    )
    return len(share)


def _let_servers_go_first() -> None:
    """Have a worker that wakes up wait for the server that runs on its core, which others wait for too.

    That is what Linux's policy for computation is for; the worker's share of the core remains what it was.
    """
    if pins_cores() and hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
