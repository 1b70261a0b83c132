"""`OneDeviceStrategy`: everything on one device, through the same interface."""

from stratagem.strategies.base import Strategy
from stratagem.strategies.engines import MirroredEngine
from stratagem.strategies.replicas import Replicas
from stratagem.strategies.workers import Alone


class OneDeviceStrategy(Strategy):
    """Training on one device: to develop with, and to compare the others against.

    Args:
        device: The device's name.
    """

    def __init__(self, device: str = "/cpu:0") -> None:
        self._own_task()
        super().__init__(MirroredEngine(Replicas.named([device])), Alone())
