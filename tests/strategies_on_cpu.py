"""Strategies for hardware that is not here, on virtual CPU devices."""

from stratagem.strategies import Strategy
from stratagem.strategies.tpu import tpu_parts


def tpu_strategy() -> Strategy:
    """What `TPUStrategy` is made of, on the CPU."""
    return Strategy(*tpu_parts("cpu"))
