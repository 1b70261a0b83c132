"""How much one side of the wire accepts from the other: bytes, tensors, connections, seconds."""

from dataclasses import dataclass, fields

from stratagem.errors import LimitExceeded

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class Limits:
    """What a listener accepts from authenticated callers, and the little that it accepts from others.

    Lengths are checked before anything is allocated for them.

    Attributes:
        header_bytes: Longest header of a frame.
        frame_bytes: Most tensor bytes in one frame, inline and shared together.
        tensors: Most tensors in one frame.
        connections: Most authenticated connections at once.
        strangers: Most connections at once that are not authenticated yet; a new one displaces the oldest.
        handshake_seconds: How long a connection may take to authenticate itself.
        stall_seconds: How long a frame that has begun may go without a single new byte.

    Example:
        >>> Limits(connections=8).connections
        8
    """

    header_bytes: int = 4 * MIB
    frame_bytes: int = 8 * GIB
    tensors: int = 65_536
    connections: int = 2_048
    strangers: int = 128
    handshake_seconds: float = 10.0
    stall_seconds: float = 60.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
                raise LimitExceeded(f"Limits({field.name}={value!r}): a limit is a number, 0 or more")


BEFORE_AUTHENTICATION = Limits(header_bytes=4 * KIB, frame_bytes=0, tensors=0)
"""What a listener accepts from a stranger: a hello and a proof are a few hundred bytes."""
WELCOME = Limits(header_bytes=256 * KIB, frame_bytes=0, tensors=0)
"""What a client accepts as a server's welcome, which carries the server's description of itself."""
