"""Strategies for hardware that is not here, on virtual CPU devices."""

from stratagem.strategies import Strategy
from stratagem.strategies.engines import MirroredEngine
from stratagem.strategies.tpu import tpu_replicas
from stratagem.strategies.workers import Alone


def tpu_strategy() -> Strategy:
    """What `TPUStrategy` is made of, on the CPU."""
    return Strategy(MirroredEngine(tpu_replicas("cpu")), Alone())
