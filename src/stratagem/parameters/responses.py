"""What a server answers a worker: where its parameters are put, and which answers are errors."""

import numpy as np

from stratagem.errors import RolledBack, TaskReplaced
from stratagem.parameters import protocol
from stratagem.parameters.config import StoreConfig
from stratagem.runtime.buffers import Buffers
from stratagem.runtime.wire import SHARED_MEMORY, Response
from stratagem.runtime.wire.arrays import Array
from stratagem.runtime.wire.peer import CallUnderWay

_BUFFERS = 3


class FreeMemory:
    """A worker's own memory for the parameters of one server.

    Args:
        config: What the server holds.
    """

    def __init__(self, config: StoreConfig) -> None:
        self._buffers = [
            (Buffers(_BUFFERS), leaf.spec.shape, np.dtype(leaf.spec.dtype)) for leaf in config.leaves
        ]

    def take(self) -> list[Array]:
        """Memory for all parameters of the server that nobody uses any more."""
        return [buffers.take(shape, dtype) for buffers, shape, dtype in self._buffers]


def receive(call: CallUnderWay, seconds: float, memory: FreeMemory | None = None) -> Response:
    """Wait for a server's answer.

    Args:
        call: The call that the server is to answer.
        seconds: How long to wait.
        memory: For the parameters in the answer, unless they can stay in shared memory; `None` if there are none.

    Raises:
        RolledBack: The servers have gone back to an earlier step, or are about to.
        TaskReplaced: A newer start of this worker has taken its place.
    """
    is_lent = memory is not None and call.transport == SHARED_MEMORY
    into = None if is_lent or memory is None else memory.take()
    answer = call.answer(timeout=seconds, into=into, lend=is_lent)
    match answer.fields.get(protocol.STATE):
        case protocol.ROLLED_BACK:
            raise RolledBack(str(answer.fields["why"]))
        case protocol.REPLACED:
            raise TaskReplaced(str(answer.fields["why"]))
    return answer
