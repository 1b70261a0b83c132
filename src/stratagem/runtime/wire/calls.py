"""A call as its two ends see it: request and reply at the server, response at the client."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np

from stratagem.runtime.wire.arrays import Array
from stratagem.runtime.wire.channels import Channel
from stratagem.runtime.wire.frames import Fields

OK, FAILED = "ok", "failed"
"""The two subjects of a reply."""
TakeOver: TypeAlias = Callable[[Channel], None]
"""Takes over the channel of a connection that was opened for something else than calls."""


@dataclass(frozen=True)
class Caller:
    """The far side of a connection.

    Attributes:
        name: The name it gave (authenticated with the secret).
        address: Its address.
        process: Its process, if it is on this host and uses the Unix socket.
    """

    name: str
    address: str
    process: int | None = None

    @cached_property
    def is_far(self) -> bool:
        """True if what is sent to it goes over a network rather than into shared memory."""
        return self.process is None


@dataclass(slots=True, eq=False)
class Request:
    """One call, as its handler gets it.

    Attributes:
        name: The call's name.
        fields: Plain values.
        tensors: Arrays. Those that are not writable are views of the caller's shared memory: they are good until the
            reply has been sent, and the caller could change them meanwhile. `take` what you check before you use it, or
            keep for later.
        owned: Whether all tensors are this side's own arrays.
        peer: The caller.
        timeout: How many seconds the caller will wait for the answer; `None` for ever.
        is_abandoned: Returns whether the caller has gone, or the listener stops. A handler that waits for something
            should ask now and then.
        respond: Answers the call, from any thread, with a reply or an error: for a handler that returns `LATER` because
            another thread will have the answer. The first answer counts, the handler's own among them; returns whether
            this was the first. Raises `TaskLost` or `DeadlineExceeded` if the connection broke. Not for callers over
            TLS, where sending and receiving are not independent of each other.
    """

    name: str
    fields: Fields
    tensors: list[Array]
    owned: bool
    peer: Caller
    timeout: float | None = None
    is_abandoned: Callable[[], bool] = field(default=lambda: False, repr=False)
    respond: "Callable[[Reply | Exception], bool]" = field(default=lambda reply: False, repr=False)

    def take(self, index: int) -> Array:
        """Return a tensor as this side's own array, copied if it is a view of shared memory."""
        tensor = self.tensors[index]
        return tensor if tensor.flags.writeable else np.array(tensor)


@dataclass(slots=True, eq=False)
class Reply:
    """What a handler answers.

    Attributes:
        fields: Plain values.
        tensors: Arrays; they are read while the reply is sent, and not afterwards.
        after: Called once the reply has been sent, or cannot be: until then nobody may write to the tensors.
        take_over: Called with the channel once the reply has been sent, if the connection is to be used for something
            else than calls from then on. The caller of `Peer.open` has the other end. Has to close the channel.
    """

    fields: Fields = field(default_factory=dict)
    tensors: Sequence[Any] = ()
    after: Callable[[], None] | None = None
    take_over: TakeOver | None = None


LATER: Final = Reply()
"""Returned by a handler whose call is answered with `Request.respond`."""


@dataclass(slots=True, eq=False)
class Response:
    """A successful answer, as the caller gets it."""

    fields: Fields
    tensors: list[Array]


Handler: TypeAlias = Callable[[Request], Reply]
