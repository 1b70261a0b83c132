"""Strategies on the path that they take with accelerators, which are not here, on virtual CPU devices."""

from unittest.mock import patch

from stratagem.collectives.xla import XlaReducer
from stratagem.strategies import MultiWorkerMirroredStrategy, Strategy, distributed


def multi_worker_strategy() -> Strategy:
    """`MultiWorkerMirroredStrategy` over XLA, with gradients that stay on the devices."""
    with patch.object(distributed, "XlaReducer", lambda **_: XlaReducer(packs_on_host=False)):
        return MultiWorkerMirroredStrategy(communication="ring", timeout=20)
