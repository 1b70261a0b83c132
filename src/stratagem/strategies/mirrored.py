"""`MirroredStrategy`: one process, all its devices, a copy of the variables on each."""

from collections.abc import Sequence

from stratagem.engines.local_engines import MirroredEngine
from stratagem.engines.replicas import Replicas
from stratagem.engines.workers import Alone
from stratagem.strategies.base import Strategy


class MirroredStrategy(Strategy):
    """Synchronous training on several devices of one machine.

    Each device computes the gradients of its rows; XLA averages them inside the compiled step.

    Args:
        devices: Names such as `["/gpu:0", "/gpu:1"]`; by default all accelerators, or all CPU devices where
            there are none.
        shard_state: Whether each device keeps and updates only its shard of the optimizer's state. The parameters are then
            gathered after each update.
    """

    def __init__(self, devices: Sequence[str] | None = None, shard_state: bool = False) -> None:
        self._own_task()
        super().__init__(MirroredEngine(Replicas.named(devices), shard_state), Alone())
