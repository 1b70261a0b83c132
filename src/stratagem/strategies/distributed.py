"""Sums by XLA between workers, over `jax.distributed`: worker 0 runs JAX's coordinator and tells the others where."""

import socket
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stratagem.cluster import Address
from stratagem.collectives.xla import XlaReducer
from stratagem.devices.backend import backends_started, guard_collectives
from stratagem.errors import StrategyError
from stratagem.runtime.wire.addresses import family
from stratagem.strategies import gloo
from stratagem.strategies.group_workers import GroupWorkers
from stratagem.strategies.guard import Guard
from stratagem.strategies.own_address import own_address

_NEVER: Final = 10 * 365 * 24 * 3600
"""Seconds. When its time is up, JAX ends the process from C++; that a worker is lost is for the group to find."""


class GuardedReducer:
    """XLA's sums, with the loss of a worker told as ours."""

    def __init__(self, reducer: XlaReducer, guard: Guard) -> None:
        self._reducer = reducer
        self._guard = guard

    def all_reduce(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Each array summed over all workers.

        Raises:
            WorkerLost: A worker is lost.
        """
        return self._guard.run(partial(self._reducer.all_reduce, arrays))


def start_xla(workers: GroupWorkers, timeout: float) -> GuardedReducer:
    """Start `jax.distributed` on every worker, and sum by it.

    Raises:
        StrategyError: JAX has been used already: then it is too late.
        WorkerLost: A worker was lost meanwhile.
    """
    if backends_started():
        raise StrategyError(
            "jax.distributed cannot be started any more, since JAX has been used in this process: make the strategy "
            "before anything else uses JAX"
        )
    guard_collectives()
    guard = Guard(workers.group, timeout)
    return GuardedReducer(guard.run(partial(_start, workers)), guard)


def _start(workers: GroupWorkers) -> XlaReducer:
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
    reducer = XlaReducer(packs_on_host=jax.default_backend() == "cpu")
    reducer.all_reduce([np.zeros((), np.float32)])
    if jax.default_backend() == "cpu":
        _sum_here()
        _leave_coordinator(workers)
    return reducer


def _sum_here() -> None:
    """Sum over the devices of this process, for which gloo needs the coordinator too, the first time."""
    devices = jax.local_devices()
    if len(devices) > 1:
        mesh = Mesh(np.array(devices), ("device",))
        split, whole = NamedSharding(mesh, PartitionSpec("device")), NamedSharding(mesh, PartitionSpec())
        zeros = jax.device_put(np.zeros(len(devices), np.float32), split)
        jax.block_until_ready(jax.jit(jnp.sum, out_shardings=whole)(zeros))


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
    with socket.socket(family(host)) as found:
        found.bind((host, 0))
        port: int = found.getsockname()[1]
        return port
