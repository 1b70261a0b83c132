"""A server that was asked something: where the parameters that it sends come to lie."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem.errors import RolledBack, TaskReplaced
from stratagem.parameters import protocol
from stratagem.parameters.config import StoreConfig
from stratagem.parameters.protocol import STATE
from stratagem.runtime.buffers import Buffers
from stratagem.runtime.wire import SHARED_MEMORY, Fields, Peer, Response
from stratagem.runtime.wire.arrays import Array

_BUFFERS = 3


class FreeMemory:
    """A worker's own memory for the parameters of one server.

    Args:
        config: What the server holds.
    """

    def __init__(self, config: StoreConfig) -> None:
        self._buffers = [
            (Buffers(_BUFFERS), held.spec.shape, np.dtype(held.spec.dtype)) for held in config.leaves
        ]

    def take(self) -> list[Array]:
        """Memory for all of them, which nobody uses any more."""
        return [buffers.take(shape, dtype) for buffers, shape, dtype in self._buffers]


class ServerAsked:
    """A call that is sent, and not answered yet; one that is not there is not waited for.

    Args:
        peer: The server.
        call: The call's name.
        fields: What goes with it.
        tensors: Arrays that go with it.
        memory: Where parameters come to that it sends: they stay in shared memory, or come into memory that is free.
            `None` if it sends others.
        seconds: How long it may take to answer.
    """

    def __init__(
        self,
        peer: Peer,
        call: str,
        fields: Fields,
        tensors: Sequence[Any],
        memory: FreeMemory | None,
        seconds: float,
    ) -> None:
        self._peer = peer
        self._memory = memory
        self._seconds = seconds
        self._under_way = peer.begin(call, fields, tensors, timeout=seconds, wait=False)

    def answer(self) -> Response:
        """What it says.

        Raises:
            RolledBack: The servers have gone back, or are about to.
            TaskReplaced: A newer start of this worker has taken its place.
        """
        lends = self._memory is not None and self._peer.transport == SHARED_MEMORY
        into = None if lends or self._memory is None else self._memory.take()
        answer = self._under_way.answer(timeout=self._seconds, into=into, lend=lends)
        match answer.fields.get(STATE):
            case protocol.ROLLED_BACK:
                raise RolledBack(str(answer.fields["why"]))
            case protocol.REPLACED:
                raise TaskReplaced(str(answer.fields["why"]))
        return answer

    def abandon(self) -> None:
        """Do without its answer."""
        self._under_way.abandon()
