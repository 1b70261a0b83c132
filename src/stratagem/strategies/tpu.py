"""`TPUStrategy`: synchronous training on TPUs, those of one machine or those of several hosts."""

import logging
from collections.abc import Mapping

import jax

from stratagem.cluster import ClusterConfig, ClusterSpec
from stratagem.cluster.sources.numbers import BASE_PORT, read_variable
from stratagem.collectives import GroupOptions
from stratagem.devices import guard_collectives, list_devices
from stratagem.engines.cluster_tasks import WORKER_JOBS, worker_tasks
from stratagem.engines.engine import Engine
from stratagem.engines.group_workers import GroupWorkers
from stratagem.engines.jax_distributed import connect_devices
from stratagem.engines.local_engines import MirroredEngine, evaluator_parts, is_evaluator
from stratagem.engines.mesh_engine import MeshEngine
from stratagem.engines.replicas import Replicas
from stratagem.engines.workers import Alone, Workers
from stratagem.environment import current
from stratagem.errors import ClusterError, DeviceNotFoundError
from stratagem.runtime import Server
from stratagem.strategies.base import Strategy

_HOSTS, _INDEX, _SLICES = "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "MEGASCALE_NUM_SLICES"
_log = logging.getLogger("stratagem")


class TPUStrategy(Strategy):
    """Synchronous training on TPUs, with one process on each host.

    On one host, `MirroredStrategy` over its TPUs. Over several, a step is one program over all TPUs of all hosts, over
    `jax.distributed`, which is started here. The hosts are those of the cluster (flags,
    TF_CONFIG, …) or, without one, those of TPU_WORKER_HOSTNAMES, where Google's machines name the hosts of a slice.

    Where there is no TPU, virtual CPU devices (`sg.configure(virtual_devices=8)`, `stratagem run --devices-per-worker 8`)
    stand in for its cores, to try a script out; a warning says so. It has not been run on a TPU yet, only on such devices,
    in one process and in two.

    Args:
        topology: Kept for TensorFlow's users: JAX finds the topology by itself.
    """

    jobs = WORKER_JOBS

    def __init__(self, topology: object | None = None) -> None:
        super().__init__(*_parts(self._own_task()))
        self.topology = topology


def _parts(config: ClusterConfig | None) -> tuple[Engine, Workers]:
    config = config or tpu_hosts(current())
    if config is not None and is_evaluator(config):
        return evaluator_parts(config, _replicas())
    if config is None or len(worker_tasks(config)) == 1:
        return MirroredEngine(_replicas()), Alone()
    options = GroupOptions()
    server = Server(config.cluster, config.job_name, config.task_index, announce_devices=False)
    workers = GroupWorkers(config, server, options)
    _log.info("TPUStrategy: worker %d of %d, from %s", workers.index, workers.count, config.source)
    replicas, under_way = connect_devices(workers, options, _replicas)
    server.announce_devices()
    return MeshEngine(replicas, workers, under_way), workers


def tpu_hosts(environ: Mapping[str, str]) -> ClusterConfig | None:
    """Return the hosts of a TPU slice, as the environment names them; `None` if it names no other host.

    Raises:
        ClusterError: The environment does not name all hosts, or does not say which one this is.
    """
    hosts = [host.strip() for host in environ.get(_HOSTS, "").split(",") if host.strip()]
    slices = read_variable(environ, _SLICES, least=1) if environ.get(_SLICES) else 1
    if slices > 1:
        raise ClusterError(
            f"{_SLICES} is {slices}, and {_HOSTS} names the hosts of one slice only: name all of them with "
            "--worker_hosts, --job_name and --task_index, or in TF_CONFIG"
        )
    if len(hosts) < 2:
        return None
    index = read_variable(environ, _INDEX)
    if index >= len(hosts):
        raise ClusterError(
            f"{_INDEX} is {index}, but {_HOSTS} has {len(hosts)} hosts: they are numbered 0 to {len(hosts) - 1}"
        )
    cluster = ClusterSpec({"worker": [f"{host}:{BASE_PORT}" for host in hosts]})
    return ClusterConfig(cluster, "worker", index, source=_HOSTS)


def _replicas() -> Replicas:
    """Return all TPU devices of this process or, where there is none, its virtual CPU devices."""
    guard_collectives()
    try:
        return Replicas(jax.local_devices(backend="tpu"))
    except RuntimeError as error:
        devices = list_devices()
        virtual = [each.device for each in devices if each.spec.device_type == "CPU"]
        if len(virtual) > 1:
            _log.warning(
                "TPUStrategy: there is no TPU here; %d virtual CPU devices stand in for its cores",
                len(virtual),
            )
            return Replicas(virtual)
        raise DeviceNotFoundError(
            f"there is no TPU here; JAX finds {', '.join(each.name for each in devices)}. On a TPU machine install JAX with "
            "its TPU support (`pip install 'jax[tpu]'`); to try a script out elsewhere, call "
            "sg.configure(virtual_devices=8) first; to train elsewhere, use MirroredStrategy, which takes whatever "
            "devices there are"
        ) from error
