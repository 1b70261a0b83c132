"""Starts `jax.distributed` for all workers: worker 0 runs JAX's coordinator and tells the others where."""

import socket
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from stratagem.cluster import Address
from stratagem.collectives.xla import XlaReducer
from stratagem.errors import StrategyError, WorkerLost
from stratagem.strategies.group_workers import GroupWorkers


class GuardedReducer:
    """XLA's sums, with the loss of a worker told as ours."""

    def __init__(self, workers: GroupWorkers) -> None:
        self._workers = workers
        self._reducer = XlaReducer()

    def all_reduce(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Each array summed over all workers."""
        try:
            return self._reducer.all_reduce(arrays)
        except (RuntimeError, ValueError) as error:  # what XLA raises depends on which of its parts noticed
            lost = self._workers.unreachable()
            found = WorkerLost(
                f"{', '.join(lost) or 'a worker'} is lost, and XLA's all-reduce with it ({str(error).splitlines()[0]}). "
                "Start the job again (`stratagem run --max-restarts` does so by itself)"
            )
            found.task = lost[0] if lost else None
            raise found from error


def start_xla(workers: GroupWorkers, timeout: float) -> GuardedReducer:
    """Start `jax.distributed` on every worker, and sum by it.

    Raises:
        StrategyError: JAX has been used already: then it is too late.
    """
    # Without this, JAX ends a process from C++ when another one dies, before Python can say anything.
    jax.config.update("jax_enable_recoverability", True)
    host = Address.parse(workers.server.peers.address(workers.server.task)).host
    own = f"{host}:{_free_port(host)}" if workers.index == 0 else ""
    told = workers.gather(np.frombuffer(own.encode(), np.uint8))
    try:
        jax.distributed.initialize(
            told[0].tobytes().decode(),
            workers.count,
            workers.index,
            heartbeat_timeout_seconds=max(1, round(timeout)),
        )
    except RuntimeError as error:
        raise StrategyError(
            f"jax.distributed could not be started: {error}. Make the strategy before anything else uses JAX"
        ) from error
    return GuardedReducer(workers)


def _free_port(host: str) -> int:
    """A port that is free now; JAX's coordinator takes no socket from us, so another could take it meanwhile."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as found:
        found.bind((host, 0))
        port: int = found.getsockname()[1]
        return port
