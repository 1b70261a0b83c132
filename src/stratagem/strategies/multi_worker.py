"""`MultiWorkerMirroredStrategy`: several processes, each with its devices, in step with each other."""

import logging
from typing import cast, get_args

from stratagem.collectives import GroupOptions
from stratagem.devices import visible_gpus
from stratagem.engines.cluster_tasks import WORKER_JOBS, ClusterLike, worker_tasks
from stratagem.engines.engine import Engine
from stratagem.engines.local_engines import MirroredEngine, evaluator_parts, is_evaluator
from stratagem.engines.multi_worker_engine import Communication, multi_worker_parts
from stratagem.engines.replicas import Replicas
from stratagem.engines.workers import Alone, Workers
from stratagem.environment import current
from stratagem.errors import StrategyError
from stratagem.strategies.base import Strategy

_log = logging.getLogger("stratagem")


class MultiWorkerMirroredStrategy(Strategy):
    """Synchronous training by several processes, on one host or on many.

    Each worker computes the gradients of its share of every global batch; their sums make the same update
    everywhere. The cluster comes from `cluster`, TF_CONFIG or the launcher; without one, this process trains
    alone. On an evaluator task the strategy consists of this process alone, which evaluates and predicts and does not
    train. A worker has finished when it calls `close()`, or ends without an uncaught exception; a worker that ends
    otherwise is lost, and the others raise `WorkerLost`.

    Args:
        cluster: The cluster, if it is not to be taken from flags or the environment, which then still tell
            which task this is. Or the communication, which comes first in TensorFlow:
            `MultiWorkerMirroredStrategy("nccl")`.
        communication: `shm`, shared memory, within one host; `ring` or `nccl`, by XLA, for which `jax.distributed` is
            started here; `auto` takes nccl where there are GPUs, shm where all workers are on one host, and ring
            otherwise, and logs which.
        bytes_per_pack: For shm: the approximate size of the packs in which gradients are sent; 0 for one pack.
        timeout: Seconds without a sign of life after which a worker is lost and the others raise `WorkerLost`;
            30 by default.
        shard_state: Whether each replica keeps and updates only its shard of the optimizer's state. The parameters are then
            gathered after each update, and all workers have to call `fetch` and `Checkpointer.save`.
    """

    jobs = WORKER_JOBS

    def __init__(
        self,
        cluster: ClusterLike | Communication | None = None,
        communication: Communication = "auto",
        bytes_per_pack: int = 0,
        timeout: float | None = None,
        shard_state: bool = False,
    ) -> None:
        if isinstance(cluster, str):
            communication = _only_communication(cluster, communication)
            cluster = None
        if communication not in get_args(Communication):
            raise StrategyError(
                f"communication is {communication!r}; it is one of {', '.join(get_args(Communication))}"
            )
        if communication == "nccl" and not visible_gpus(current()):
            raise StrategyError(
                "communication='nccl' needs GPUs, and this machine shows none; use 'auto', 'shm' or 'ring'"
            )
        config = self._own_task(cluster)
        options = GroupOptions(bytes_per_pack, 30.0 if timeout is None else timeout)
        engine: Engine
        workers: Workers
        if config is not None and is_evaluator(config):
            engine, workers = evaluator_parts(config, Replicas.named(None))
        elif config is None or len(worker_tasks(config)) == 1:
            _log.info("MultiWorkerMirroredStrategy: no other worker, this process trains alone")
            engine, workers = MirroredEngine(Replicas.named(None), shard_state), Alone()
        else:
            engine, workers = multi_worker_parts(config, communication, options, shard_state)
        super().__init__(engine, workers)


def _only_communication(given: str, communication: Communication) -> Communication:
    """Return the communication that was given in place of the cluster.

    Raises:
        StrategyError: It is not a communication, or was given twice.
    """
    for name in get_args(Communication):
        if given == name and communication in ("auto", name):
            return cast(Communication, name)
    raise StrategyError(
        f"cluster is {given!r} and communication is {communication!r}; a cluster is a ClusterSpec or a dictionary of "
        f"addresses by job, and communication one of {', '.join(get_args(Communication))}, as in communication='ring'"
    )
