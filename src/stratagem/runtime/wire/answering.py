"""What a listener has done so far, for its status.

Log lines that strangers can cause: few per second, however many there are.

One connection at the server: its handshake, then call after call until the far side leaves.
"""

import logging
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratagem.errors import (
    AuthenticationError,
    DeadlineExceeded,
    ProtocolError,
    RemoteError,
    TaskLost,
    UnknownCall,
)
from stratagem.runtime.exits import DAEMON_WORK
from stratagem.runtime.wire.calls import FAILED, LATER, OK, Caller, Handler, Reply, Request, TakeOver
from stratagem.runtime.wire.channels import Channel, Message, without_lease
from stratagem.runtime.wire.credentials import Credentials
from stratagem.runtime.wire.error_translation import describe_failure
from stratagem.runtime.wire.frames import Fields
from stratagem.runtime.wire.handshake import REFUSED_TLS, handshake_as_server
from stratagem.runtime.wire.limits import BEFORE_AUTHENTICATION, Limits
from stratagem.runtime.wire.sockets import Stream
from stratagem.runtime.wire.waiting import FOREVER, Deadline, Stall


@dataclass(frozen=True)
class ListenerStatus:
    """Counts at one moment.

    Attributes:
        seconds: Since the listener was made.
        calls: Calls answered, by name.
        failures: Calls answered with an error.
        bytes_in: Bytes of all requests, shared memory included.
        bytes_out: Bytes of all replies, shared memory included.
        connections: Authenticated connections now.
        strangers: Connections now that are not authenticated yet.
        accepted: Authenticated connections so far.
        refused: Connections that were turned away so far.
        last_error: The last thing that went wrong, as one line.
    """

    seconds: float
    calls: dict[str, int]
    failures: int
    bytes_in: int
    bytes_out: int
    connections: int
    strangers: int
    accepted: int
    refused: int
    last_error: str | None


@dataclass
class Counters:
    """Counts, from many threads."""

    started: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _calls: Counter[str] = field(default_factory=Counter)
    _failures: int = 0
    _bytes_in: int = 0
    _bytes_out: int = 0
    _accepted: int = 0
    _refused: int = 0
    _last_error: str | None = None

    def call(self, name: str, bytes_in: int, bytes_out: int, error: str | None = None) -> None:
        """A call was answered."""
        with self._lock:
            self._calls[name] += 1
            self._bytes_in += bytes_in
            self._bytes_out += bytes_out
            if error is not None:
                self._failures += 1
                self._last_error = f"{name}: {error}"

    def failed(self, name: str, error: str) -> None:
        """Something went wrong in a call that was answered before."""
        with self._lock:
            self._failures += 1
            self._last_error = f"{name}: {error}"

    def accepted(self) -> None:
        """A connection was authenticated."""
        with self._lock:
            self._accepted += 1

    def refused(self, why: str) -> None:
        """A connection was turned away."""
        with self._lock:
            self._refused += 1
            self._last_error = why

    def snapshot(self, connections: int, strangers: int) -> ListenerStatus:
        """The counts now."""
        with self._lock:
            return ListenerStatus(
                seconds=time.monotonic() - self.started,
                calls=dict(self._calls),
                failures=self._failures,
                bytes_in=self._bytes_in,
                bytes_out=self._bytes_out,
                connections=connections,
                strangers=strangers,
                accepted=self._accepted,
                refused=self._refused,
                last_error=self._last_error,
            )


LOGGER = logging.getLogger("stratagem")


class RateLimitedLog:
    """Warnings, a handful at once, then so many per second; the next one says how many were left out."""

    def __init__(self, burst: int = 20, per_second: float = 1.0) -> None:
        self._burst, self._per_second = burst, per_second
        self._lock = threading.Lock()
        self._allowance = float(burst)
        self._last = time.monotonic()
        self._left_out = 0

    def warning(self, text: str) -> None:
        """Log the text, or count it."""
        with self._lock:
            now = time.monotonic()
            grown = self._allowance + (now - self._last) * self._per_second
            self._allowance, self._last = min(grown, self._burst), now
            if self._allowance < 1:
                self._left_out += 1
                return
            self._allowance -= 1
            left_out, self._left_out = self._left_out, 0
        LOGGER.warning("%s%s", text, f" (and {left_out} more)" if left_out else "")


_TLS_HANDSHAKE = 0x16  # first byte of a TLS connection; our frames begin with a letter
_PUNISHMENT_SECONDS = 0.2
_UNKNOWN_CALL = "unknown"


@dataclass(frozen=True)
class ListenerContext:
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
    log: RateLimitedLog


def authenticate(
    service: ListenerContext, stream: Stream, channel: Channel, admitted: Callable[[], None]
) -> str:
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

    return handshake_as_server(
        channel,
        service.credentials,
        binding,
        service.limits,
        deadline,
        admit,
        lambda: service.stopping.wait(_PUNISHMENT_SECONDS),
    )


def serve_calls(service: ListenerContext, channel: Channel, caller: Caller) -> TakeOver | None:
    """Answer calls until the far side closes the connection, or sends what is no frame, or a handler wants to keep it.

    Returns:
        What takes the channel over, if something does.
    """
    return _Line(service, channel, caller).serve()


class _Line:
    """One connection, on which call follows call.

    Args:
        service: What the listener serves.
        channel: The channel over it.
        caller: Who calls.
    """

    def __init__(self, service: ListenerContext, channel: Channel, caller: Caller) -> None:
        self._service = service
        self._channel = channel
        self._caller = caller
        self._stall = Stall(service.limits.stall_seconds)
        self._answer: _Answer | None = None

    def serve(self) -> TakeOver | None:
        """See `serve_calls`."""
        keep: TakeOver | bool = True
        try:
            while keep is True:
                keep = self._serve_one()
        finally:
            if self._answer is not None:
                self._answer.close()
        return keep or None

    def _serve_one(self) -> TakeOver | bool:
        """Serve one call; whether another may follow, or what takes the channel over.

        A function of its own, so that no array of this call is kept alive while the next one is awaited.
        """
        channel, problem = self._channel, None
        try:
            message = channel.receive(FOREVER, self._stall, borrow=without_lease)
        except TaskLost:
            return False
        except RemoteError as error:
            problem = error
        # From now on nobody answers the last call, so that the channel is this thread's alone.
        is_in_turn = self._answer is None or self._answer.close()
        channel.take_down()
        if not is_in_turn:
            problem = ProtocolError("a call before the one before it was answered")
        if problem is not None:
            self._refuse(problem)
            return is_in_turn and channel.is_intact
        with DAEMON_WORK:
            return self._handled(message)

    def _refuse(self, error: RemoteError) -> None:
        caller = self._caller
        self._service.log.warning(
            f"refused a message of {caller.name or 'a client'} at {caller.address}: {error}"
        )
        # What led here in this process is nothing to one who sends such things: no traceback.
        told = {"class": type(error).__name__, "message": str(error)}
        _, sent = self._channel.send(FAILED, told, (), self._stall)
        self._service.counters.call(_UNKNOWN_CALL, 0, sent, str(error))

    def _handled(self, message: Message) -> TakeOver | bool:
        """Run the handler, and send what comes of it, unless somebody else does."""
        service, channel = self._service, self._channel
        answer = self._answer = _Answer(service, channel, self._stall, message)
        request = Request(
            name=message.subject,
            fields=message.fields,
            tensors=message.tensors,
            owned=not message.borrowed,
            peer=self._caller,
            timeout=message.timeout,
            is_abandoned=lambda: not channel.stream.is_open(),
            respond=answer.respond,
        )
        try:
            handler = service.handlers.get(message.subject)
            if handler is None:
                raise UnknownCall(
                    f"no such call: {message.subject!r:.80}; this task answers {', '.join(sorted(service.handlers))}"
                )
            reply = handler(request)
        except BaseException as error:  # noqa: BLE001  whatever a handler raises is the caller's to know
            answer.fail(error)
            return True
        if reply is LATER:
            return True
        answer.respond(reply)
        return True if reply.take_over is None else reply.take_over


class _Answer:
    """The answer to one call: the first that is given, by whichever thread.

    Args:
        service: What the listener serves.
        channel: Where the answer goes.
        stall: How long sending it may make no progress.
        message: The call.
    """

    __slots__ = ("_channel", "_counters", "_is_over", "_is_sent", "_lock", "_name", "_nbytes", "_stall")

    def __init__(self, service: ListenerContext, channel: Channel, stall: Stall, message: Message) -> None:
        self._channel = channel
        self._stall = stall
        self._counters = service.counters
        self._name = message.subject if message.subject in service.handlers else _UNKNOWN_CALL
        self._nbytes = message.nbytes
        self._lock = threading.Lock()
        self._is_over = self._is_sent = False

    def respond(self, reply: Reply | Exception) -> bool:
        """See `Request.respond`."""
        if not isinstance(reply, Reply):
            return self.fail(reply)
        try:
            with self._lock:
                if self._is_over:
                    return False
                self._is_over = True
                try:
                    sent = self._sent(OK, reply.fields, reply.tensors)
                except (TaskLost, DeadlineExceeded):
                    raise
                except Exception as error:  # noqa: BLE001  an answer that cannot be sent, of which nothing was
                    self._send_failure(error)
                else:
                    self._counters.call(self._name, self._nbytes, sent)
                return True
        finally:
            if reply.after is not None:
                reply.after()

    def fail(self, error: BaseException) -> bool:
        """Tell the caller what went wrong, unless it has an answer."""
        with self._lock:
            if self._is_over:
                self._counters.failed(self._name, _line(error))
                return False
            self._is_over = True
            self._send_failure(error)
            return True

    def close(self) -> bool:
        """Let nobody answer any more; whether somebody has."""
        with self._lock:
            self._is_over = True
            return self._is_sent

    def _send_failure(self, error: BaseException) -> None:
        sent = self._sent(FAILED, describe_failure(error), ())
        self._counters.call(self._name, self._nbytes, sent, _line(error))

    def _sent(self, subject: str, fields: Fields, tensors: Sequence[Any]) -> int:
        """Send it; how many bytes it took."""
        try:
            sent = self._channel.send(subject, fields, tensors, self._stall)[1]
        except (TaskLost, DeadlineExceeded):
            # Another thread may be the one that sends: that of the connection finds it closed.
            self._channel.stream.wake()
            raise
        self._is_sent = True
        return sent


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error!s:.300}"
