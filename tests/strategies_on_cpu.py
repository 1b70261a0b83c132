"""Strategies as they are on accelerators, which are not here, on virtual CPU devices."""

from unittest.mock import patch

from stratagem.engines import mesh_engine
from stratagem.strategies import MultiWorkerMirroredStrategy, Strategy


def multi_worker_strategy() -> Strategy:
    """`MultiWorkerMirroredStrategy` over XLA, which joins by itself what it sums."""
    with patch.object(mesh_engine, "sends_each_array_by_itself", lambda _: False):
        return MultiWorkerMirroredStrategy(communication="ring", timeout=20)
