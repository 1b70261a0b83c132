"""JAX between workers, by `jax.distributed`: worker 0 runs JAX's coordinator and tells the others where."""

import socket
from collections.abc import Callable
from functools import partial
from typing import Final

import jax
import numpy as np
from jax.sharding import PartitionSpec

from stratagem.cluster import Address
from stratagem.collectives import GroupOptions
from stratagem.devices.backend import backends_started, guard_collectives
from stratagem.devices.placing import put
from stratagem.engines import gloo
from stratagem.engines.global_mesh import WORKER_AXIS, GlobalMesh
from stratagem.engines.group_workers import GroupWorkers
from stratagem.engines.own_address import own_address
from stratagem.engines.replicas import REPLICA_AXIS, Replicas
from stratagem.engines.steps_under_way import StepsUnderWay
from stratagem.errors import StrategyError
from stratagem.runtime.wire.addresses import address_family

_NEVER: Final = 10 * 365 * 24 * 3600
"""Seconds. When its time is up, JAX ends the process from C++; that a worker is lost is for the group to find."""


def connect_devices(
    workers: GroupWorkers, options: GroupOptions, replicas: Callable[[], Replicas]
) -> tuple[Replicas, StepsUnderWay]:
    """Start `jax.distributed` on every worker, for steps over the devices of all of them.

    Args:
        workers: The workers.
        options: How long they wait for each other.
        replicas: Finds the devices of this one, once JAX knows of the others'.

    Returns:
        The devices of this worker, and what runs steps that wait for other workers inside XLA.

    Raises:
        StrategyError: JAX has been used already: then it is too late. Or the workers' devices do not go together.
        WorkerLost: A worker was lost meanwhile.
    """
    if backends_started():
        raise StrategyError(
            "jax.distributed cannot be started any more, since JAX has been used in this process: make the strategy "
            "before anything else uses JAX"
        )
    guard_collectives()
    under_way = workers.under_way = StepsUnderWay(workers.group, options)
    under_way.run(partial(_start, workers))
    own = replicas()
    under_way.run(partial(_connect, workers, own))
    return own, under_way


def _start(workers: GroupWorkers) -> None:
    hosts = [Address.parse(workers.server.peers.address(task)).host for task in workers.group.tasks]
    own = own_address(hosts[workers.index], hosts)
    proposed = str(Address(own, _free_port(own))) if workers.index == 0 else ""
    coordinator = workers.gather(np.frombuffer(proposed.encode(), np.uint8))[0].tobytes().decode()
    # Else JAX waits at its end for workers that have died, and keeps SIGTERM from ending the process.
    jax.config.update("jax_enable_recoverability", True)
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator,
        workers.count,
        workers.index,
        initialization_timeout=_NEVER,
        heartbeat_timeout_seconds=_NEVER,
        coordinator_bind_address=coordinator,  # and not on every interface: it asks nobody for a secret
    )
    gloo.listen_at(own)
    jax.devices()  # all wait for each other's


def _connect(workers: GroupWorkers, replicas: Replicas) -> None:
    """Have XLA connect all devices among which it may be asked to sum."""
    mesh = GlobalMesh(replicas)
    for axes in ((WORKER_AXIS,), (REPLICA_AXIS,), (WORKER_AXIS, REPLICA_AXIS)):
        if len(replicas) > 1 or axes == (WORKER_AXIS,):
            total = jax.shard_map(
                partial(jax.lax.psum, axis_name=axes),
                mesh=mesh.mesh,
                in_specs=PartitionSpec(),
                out_specs=PartitionSpec(),
                check_vma=False,
            )
            jax.block_until_ready(jax.jit(total)(put(np.float32(0), mesh.whole)))
    if replicas.devices[0].platform == "cpu":
        _leave_coordinator(workers)


def _leave_coordinator(workers: GroupWorkers) -> None:
    """Do without JAX's coordinator from now on.

    A worker that stayed connected would be aborted from C++ when worker 0 dies, and wait for it when the link to it is
    cut. What gloo needs of it, it has had by the first sum over the same devices. Not so on accelerators, where XLA may
    ask it again.
    """
    if workers.index == 0:
        workers.group.barrier()  # the coordinator goes last
        jax.distributed.shutdown()
    else:
        jax.distributed.shutdown()
        workers.group.barrier()


def _free_port(host: str) -> int:
    """A port that is free now; JAX's coordinator takes no socket from us, so another could take it meanwhile."""
    with socket.socket(address_family(host)) as found:
        found.bind((host, 0))
        port: int = found.getsockname()[1]
        return port
