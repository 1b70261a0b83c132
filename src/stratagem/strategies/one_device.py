"""`OneDeviceStrategy`: everything on one device, through the same interface."""

from stratagem.engines.local_engines import MirroredEngine
from stratagem.engines.replicas import Replicas
from stratagem.engines.workers import Alone
from stratagem.strategies.base import Strategy


class OneDeviceStrategy(Strategy):
    """Training on one device: to develop with, and to compare the others against.

    Args:
        device: The device's name.
    """

    def __init__(self, device: str = "/cpu:0") -> None:
        self._own_task()
        super().__init__(MirroredEngine(Replicas.named([device])), Alone())
