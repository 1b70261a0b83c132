"""`MultiWorkerMirroredStrategy`: several processes, each with its devices, in step with each other."""

import logging
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from stratagem.cluster import Address, ClusterConfig, ClusterSpec, resolve_cluster
from stratagem.collectives import GroupOptions
from stratagem.devices import avoid_oversubscription, visible_gpus
from stratagem.environment import current
from stratagem.errors import StrategyError
from stratagem.runtime import Server
from stratagem.strategies.base import Strategy
from stratagem.strategies.distributed import start_xla
from stratagem.strategies.engines import Engine, MirroredEngine
from stratagem.strategies.group_workers import GroupWorkers, worker_tasks
from stratagem.strategies.multi_worker_engine import MultiWorkerEngine
from stratagem.strategies.replicas import Replicas
from stratagem.strategies.workers import Alone, Workers

Communication = Literal["auto", "ring", "nccl", "shm"]
_log = logging.getLogger("stratagem")


class MultiWorkerMirroredStrategy(Strategy):
    """Synchronous training by several processes, on one host or on many.

    Each worker computes the gradients of its share of every global batch; their sums make the same update
    everywhere. The cluster comes from `cluster`, TF_CONFIG or the launcher; without one, this process trains
    alone.

    Args:
        cluster: The cluster, if it is not to be taken from flags or the environment, which then still tell
            which task this is.
        communication: `shm`, through the runtime: shared memory within one host; `ring` or `nccl`, by XLA over
            `jax.distributed`; `auto` takes nccl where there are GPUs, shm where all workers are on one host, and
            ring otherwise, and logs which.
        bytes_per_pack: For shm: send gradients in packs of about so many bytes; 0 for one pack.
        timeout: Seconds without a sign of life after which a worker is lost and the others raise `WorkerLost`;
            30 by default.
    """

    def __init__(
        self,
        cluster: ClusterSpec | Mapping[str, Sequence[str] | Mapping[int, str]] | None = None,
        communication: Communication = "auto",
        bytes_per_pack: int = 0,
        timeout: float | None = None,
    ) -> None:
        if communication not in get_args(Communication):
            raise StrategyError(
                f"communication is {communication!r}; it is one of {', '.join(get_args(Communication))}"
            )
        if communication == "nccl" and not visible_gpus(current()):
            raise StrategyError(
                "communication='nccl' needs GPUs, and this machine shows none; use 'auto', 'shm' or 'ring'"
            )
        config = _own_config(cluster)
        options = GroupOptions(bytes_per_pack, 30.0 if timeout is None else timeout)
        if config is None or len(worker_tasks(config)) == 1:
            _log.info("MultiWorkerMirroredStrategy: no other worker, this process trains alone")
            engine: Engine = MirroredEngine(Replicas.named(None))
            workers: Workers = Alone()
        else:
            engine, workers = _together(config, communication, options)
        super().__init__(engine, workers)


def _own_config(
    cluster: ClusterSpec | Mapping[str, Sequence[str] | Mapping[int, str]] | None,
) -> ClusterConfig | None:
    config = resolve_cluster()
    if cluster is None:
        return config
    if config is None:
        raise StrategyError(
            "a cluster was given, but neither flags (--job_name, --task_index) nor TF_CONFIG tell which task of it this is"
        )
    return ClusterConfig(ClusterSpec(cluster), config.job_name, config.task_index, config.source)


def _together(
    config: ClusterConfig, communication: Communication, options: GroupOptions
) -> tuple[Engine, Workers]:
    own_host = Address.parse(config.address or "").host
    if sum(Address.parse(task.address).host == own_host for task in config.cluster.tasks()) > 1:
        avoid_oversubscription()
    server = Server(config.cluster, config.job_name, config.task_index, announce_devices=False)
    workers = GroupWorkers(config, server, options)
    chosen, why = _choose(communication, workers)
    _log.info("MultiWorkerMirroredStrategy: communication %s, %s", chosen, why)
    reducer = workers.group if chosen == "shm" else start_xla(workers, options.timeout)
    server.announce_devices()
    return MultiWorkerEngine(Replicas.named(None), workers, reducer), workers


def _choose(communication: Communication, workers: GroupWorkers) -> tuple[str, str]:
    if communication != "auto":
        if communication == "shm" and not workers.are_on_one_host():
            _log.warning(
                "communication='shm' between several hosts: tensors go over TCP; 'ring' is made for that"
            )
        return communication, "as asked for"
    if visible_gpus(current()):
        return "nccl", "since there are GPUs"
    if workers.are_on_one_host():
        return "shm", "since all workers are on this host"
    return "ring", "since the workers are on several hosts without GPUs"
