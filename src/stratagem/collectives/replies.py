"""An answer that tells when it has been sent."""

from collections.abc import Callable, Sequence

from stratagem.runtime.wire import Fields, Reply
from stratagem.runtime.wire.arrays import Array


class SentReply(Reply):
    """A reply that calls a function once the wire has let go of it: it has been sent then, or cannot be.

    Woken any sooner, the thread that waits for the end of the round would take the interpreter's lock and a
    processor away from the one that is still sending, and so keep another worker waiting.
    """

    def __init__(self, fields: Fields, tensors: Sequence[Array], after: Callable[[], None]) -> None:
        super().__init__(fields, tensors)
        self._after = after

    def __del__(self) -> None:
        self._after()
