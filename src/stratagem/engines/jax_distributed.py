"""Starts `jax.distributed` between workers: worker 0 runs JAX's coordinator and tells the others its address."""

import ipaddress
import socket
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import jax
import numpy as np
from jax.sharding import PartitionSpec

from stratagem.cluster import Address
from stratagem.collectives import GroupOptions
from stratagem.devices.backend import backends_started, guard_collectives, jax_option
from stratagem.devices.global_arrays import put
from stratagem.engines.group_workers import GroupWorkers
from stratagem.engines.meshes import WORKER_AXIS, GlobalMesh
from stratagem.engines.replicas import REPLICA_AXIS, Replicas
from stratagem.engines.steps_under_way import StepsUnderWay
from stratagem.errors import StrategyError
from stratagem.runtime.wire.addresses import address_family, is_here, resolve_host

_NEVER: Final = 10 * 365 * 24 * 3600
"""Seconds. JAX ends the process from C++ when a timeout is up; noticing that a worker is lost is left to the group."""


def connect_devices(
    workers: GroupWorkers, options: GroupOptions, replicas: Callable[[], Replicas]
) -> tuple[Replicas, StepsUnderWay]:
    """Start `jax.distributed` on every worker, for steps over the devices of all of them.

    Args:
        workers: The workers.
        options: How long they wait for each other.
        replicas: Returns the devices of this worker, once JAX knows those of the others.

    Returns:
        The devices of this worker, and what runs steps that wait for other workers inside XLA.

    Raises:
        StrategyError: JAX has been used in this process, so it is too late; or the workers' devices do not go together.
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
    under_way.run(partial(_sum_once, workers, own))
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
    listen_for_gloo(own)
    jax.devices()  # all wait for each other's


def _sum_once(workers: GroupWorkers, replicas: Replicas) -> None:
    """Have XLA connect all devices that it may have to sum between."""
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
    """Disconnect from JAX's coordinator.

    A worker that stayed connected would be aborted from C++ when worker 0 dies, and wait for it when the network between
    them fails. Gloo needs the coordinator only until the first sum over the same devices; on accelerators XLA may need it
    again.
    """
    if workers.index == 0:
        workers.group.barrier()  # the coordinator goes last
        jax.distributed.shutdown()
    else:
        jax.distributed.shutdown()
        workers.group.barrier()


def _free_port(host: str) -> int:
    """Return a port that is free now. JAX's coordinator accepts no open socket, so another process could take the port."""
    with socket.socket(address_family(host)) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


# Addresses.

_ANY_PORT = 9  # nothing is sent there: the kernel is only asked for the route


def listen_for_gloo(address: str) -> None:
    """Have gloo, by which XLA sums between CPUs, listen at an address of this host. Call this before JAX's backends start.

    By itself, gloo listens at the address of this host's name, which on many machines is 127.0.0.1 or 127.0.1.1, where
    no other host reaches it. JAX has no option for it, so the CPU backend is made here, by JAX's own means. This has no
    effect where the user has chosen other collectives (`jax_cpu_collectives_implementation`).
    """
    if jax_option("jax_cpu_collectives_implementation") != "gloo":
        return
    # Partly not of JAX's public interface, and slow to import: only processes that sum between hosts need it.
    from jax._src import distributed, xla_bridge
    from jax.extend.backend import register_backend_factory
    from jaxlib import _jax

    def make() -> object:
        client = distributed.global_state.client
        return xla_bridge.make_cpu_client(_jax.make_gloo_tcp_collectives(client, hostname=address))

    register_backend_factory("cpu", make, priority=0, fail_quietly=False)


def own_address(own: str, others: Iterable[str]) -> str:
    """Return an IP address of this host that the other hosts can reach.

    The host's own name is not enough: on many machines it means 127.0.1.1, and in a container that of a service,
    which is on no interface here. Then the route to the others tells.

    Args:
        own: This host, as the cluster names it.
        others: The other hosts, as the cluster names them.

    Returns:
        An address of one of this host's interfaces; a loopback one only if the others are on this host too.
    """
    local = [address for address in _candidates(own, others) if is_here(address)]
    reachable = [address for address in local if not ipaddress.ip_address(address).is_loopback]
    return next(iter([*reachable, *local]), own)


def _candidates(own: str, others: Iterable[str]) -> Iterator[str]:
    yield from resolve_host(own)
    for other in others:
        for address in resolve_host(other):
            with socket.socket(address_family(address), socket.SOCK_DGRAM) as probe:
                try:
                    probe.connect((address, _ANY_PORT))
                except OSError:
                    continue
                yield probe.getsockname()[0]
