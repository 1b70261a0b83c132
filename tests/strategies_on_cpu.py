"""Strategies for hardware that is not here, on virtual CPU devices."""

from unittest.mock import patch

from stratagem.cluster import resolve_cluster
from stratagem.collectives.xla import XlaReducer
from stratagem.strategies import MultiWorkerMirroredStrategy, Strategy, distributed
from stratagem.strategies.tpu import tpu_parts


def tpu_strategy() -> Strategy:
    """What `TPUStrategy` is made of, on the CPU."""
    return Strategy(*tpu_parts(resolve_cluster(), "cpu"))


def multi_worker_strategy() -> Strategy:
    """`MultiWorkerMirroredStrategy` over XLA, with gradients that stay on the devices as those of accelerators do."""
    with patch.object(distributed, "XlaReducer", lambda **_: XlaReducer(packs_on_host=False)):
        return MultiWorkerMirroredStrategy(communication="ring", timeout=20)
