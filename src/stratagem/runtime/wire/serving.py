"""One connection at the server: its handshake, then call after call until the far side leaves."""

import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stratagem.errors import AuthenticationError, DeadlineExceeded, ProtocolError, RemoteError, TaskLost
from stratagem.runtime.wire.calls import FAILED, OK, Caller, Handler, Keep, Reply, Request
from stratagem.runtime.wire.channels import Channel, Message, in_place
from stratagem.runtime.wire.counters import Counters
from stratagem.runtime.wire.credentials import Credentials
from stratagem.runtime.wire.deadlines import FOREVER, Deadline, Stall
from stratagem.runtime.wire.failures import describe_failure
from stratagem.runtime.wire.handshake import REFUSED_TLS, receive_guest
from stratagem.runtime.wire.limits import BEFORE_AUTHENTICATION, Limits
from stratagem.runtime.wire.rationed import RationedLog
from stratagem.runtime.wire.streams import Stream

_TLS_HANDSHAKE = 0x16  # first byte of a TLS connection; our frames begin with a letter
_PUNISHMENT_SECONDS = 0.2
_UNKNOWN_CALL = "unknown"


@dataclass(frozen=True)
class Service:
    """What all connections of one listener share.

    Attributes:
        handlers: Functions by name of call; more may be added while it runs.
        tell: What to tell a caller who is authenticated (`info`, `host_socket`).
        context: For TLS, if the listener speaks it.
        binding: Digest of the certificate it shows.
        stopping: Set when the listener stops.
        log: For what others can cause.
    """

    handlers: Mapping[str, Handler]
    credentials: Credentials
    limits: Limits
    tell: Callable[[], Mapping[str, Any]]
    counters: Counters
    context: ssl.SSLContext | None
    binding: bytes
    stopping: threading.Event
    log: RationedLog


def authenticate(service: Service, stream: Stream, channel: Channel, admitted: Callable[[], None]) -> str:
    """Greet a stranger; the caller's name, once it has proved that it belongs.

    Args:
        service: What the listener serves.
        stream: The new connection.
        channel: The channel over it.
        admitted: Called when the proof was right; may raise `LimitExceeded`.
    """
    deadline = Deadline(service.limits.handshake_seconds)
    binding = b""
    if not stream.is_unix:
        is_tls = stream.first_byte(deadline) == _TLS_HANDSHAKE
        if service.context is not None and is_tls:
            stream.secure(service.context, True, deadline)
            binding = service.binding
        elif service.context is not None:
            channel.receive(deadline, deadline)
            channel.send("refused", {"kind": REFUSED_TLS}, (), deadline)
            raise AuthenticationError("it does not speak TLS and this server speaks nothing else")
        elif is_tls:
            # Read what it says and answer in clear: to the far side that is the sign of a server without TLS.
            stream.receive(memoryview(bytearray(BEFORE_AUTHENTICATION.header_bytes)), deadline)
            channel.send("refused", {"kind": "no tls"}, (), deadline)
            raise AuthenticationError("it speaks TLS and this server has no certificate")

    def admit(_: str) -> Mapping[str, Any]:
        admitted()
        return service.tell()

    return receive_guest(
        channel,
        service.credentials,
        binding,
        service.limits,
        deadline,
        admit,
        lambda: service.stopping.wait(_PUNISHMENT_SECONDS),
    )


def serve_calls(service: Service, channel: Channel, caller: Caller) -> Keep | None:
    """Answer calls until the far side closes the connection, or sends what is no frame, or a handler wants to keep it.

    Returns:
        What takes the channel over, if something does.
    """
    stall = Stall(service.limits.stall_seconds)
    keep: Keep | bool = True
    while keep is True:
        keep = _serve_one(service, channel, caller, stall)
    return keep or None


def _serve_one(service: Service, channel: Channel, caller: Caller, stall: Stall) -> Keep | bool:
    """Answer one call; whether another may follow, or what takes the channel over.

    A function of its own, so that no array of this call is kept alive while the next one is awaited.
    """
    try:
        message = channel.receive(FOREVER, stall, borrow=in_place)
    except TaskLost:
        return False
    except RemoteError as error:
        service.log.warning(f"refused a message of {caller.name or 'a client'} at {caller.address}: {error}")
        # What led here in this process is nothing to one who sends such things: no traceback.
        _, sent = channel.send(FAILED, {"class": type(error).__name__, "message": str(error)}, (), stall)
        service.counters.call(_UNKNOWN_CALL, 0, sent, str(error))
        return channel.is_intact
    sent, problem, keep = _answer(service, channel, caller, message, stall)
    name = message.subject if message.subject in service.handlers else _UNKNOWN_CALL
    service.counters.call(name, message.nbytes, sent, problem)
    return True if keep is None else keep


class _Answer:
    """The answer to one call.

    Args:
        channel: Where it goes.
        stall: How long sending it may make no progress.

    Attributes:
        sent: How many bytes it took, once it is sent.
    """

    __slots__ = ("_channel", "_stall", "sent")

    def __init__(self, channel: Channel, stall: Stall) -> None:
        self._channel = channel
        self._stall = stall
        self.sent: int | None = None

    def send(self, reply: Reply) -> None:
        """Send it; see `Request.respond`."""
        try:
            self.sent = self._channel.send(OK, reply.fields, reply.tensors, self._stall)[1]
        except (TaskLost, DeadlineExceeded):
            # Another thread may be the one that sends: that of the connection finds it closed.
            self._channel.stream.wake()
            raise
        finally:
            if reply.after is not None:
                reply.after()


def _answer(
    service: Service, channel: Channel, caller: Caller, message: Message, stall: Stall
) -> tuple[int, str | None, Keep | None]:
    """Run the handler and send what comes of it: how many bytes, what went wrong, who keeps the connection."""
    answer = _Answer(channel, stall)
    try:
        reply = _handle(service, channel, caller, message, answer)
    except BaseException as error:  # noqa: BLE001  whatever a handler raises is the caller's to know
        return (
            _send_failure(channel, error, stall) if answer.sent is None else (answer.sent, str(error), None)
        )
    if answer.sent is None:
        try:
            answer.send(reply)
        except (TaskLost, DeadlineExceeded):
            raise
        except Exception as error:  # noqa: BLE001  an answer that cannot be sent, of which nothing was
            return _send_failure(channel, error, stall)
    return answer.sent or 0, None, reply.keep


def _send_failure(channel: Channel, error: BaseException, stall: Stall) -> tuple[int, str, None]:
    _, sent = channel.send(FAILED, describe_failure(error), (), stall)
    return sent, f"{type(error).__name__}: {error!s:.300}", None


def _handle(service: Service, channel: Channel, caller: Caller, message: Message, answer: _Answer) -> Reply:
    handler = service.handlers.get(message.subject)
    if handler is None:
        raise ProtocolError(
            f"no such call: {message.subject!r:.80}; this task answers {', '.join(sorted(service.handlers))}"
        )
    request = Request(
        name=message.subject,
        fields=message.fields,
        tensors=message.tensors,
        owned=not message.borrowed,
        peer=caller,
        timeout=message.timeout,
        is_abandoned=lambda: not channel.stream.is_open(),
        respond=answer.send,
    )
    return handler(request)
