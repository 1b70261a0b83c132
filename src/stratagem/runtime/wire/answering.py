"""One connection at the server: its handshake, then call after call until the far side leaves."""

import logging
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

_log = logging.getLogger("stratagem")
_TLS_HANDSHAKE = 0x16  # first byte of a TLS connection; our frames begin with a letter
_PUNISHMENT_SECONDS = 0.2
_UNKNOWN_CALL = "unknown"


@dataclass
class ListenerStatus:
    """A listener's counts at one moment.

    Attributes:
        seconds: Seconds since the listener was made.
        calls: Calls answered, by name.
        failures: Calls answered with an error.
        bytes_in: Bytes of all requests, shared memory included.
        bytes_out: Bytes of all replies, shared memory included.
        connections: Authenticated connections now.
        strangers: Connections now that are not authenticated yet.
        accepted: Authenticated connections so far.
        refused: Connections refused so far.
        last_error: The last error, as one line.
    """

    seconds: float = 0.0
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    failures: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    connections: int = 0
    strangers: int = 0
    accepted: int = 0
    refused: int = 0
    last_error: str | None = None


class Counters:
    """Counts what a listener does, from many threads."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._counts = ListenerStatus()

    def count_call(self, name: str, bytes_in: int, bytes_out: int, error: str | None = None) -> None:
        """Count a call that was answered."""
        with self._lock:
            counts = self._counts
            counts.calls[name] += 1
            counts.bytes_in += bytes_in
            counts.bytes_out += bytes_out
            if error is not None:
                counts.failures += 1
                counts.last_error = f"{name}: {error}"

    def count_late_failure(self, name: str, error: str) -> None:
        """Count an error in a call that was answered before."""
        with self._lock:
            self._counts.failures += 1
            self._counts.last_error = f"{name}: {error}"

    def count_accepted(self) -> None:
        """Count a connection that was authenticated."""
        with self._lock:
            self._counts.accepted += 1

    def count_refused(self, why: str) -> None:
        """Count a connection that was refused."""
        with self._lock:
            self._counts.refused += 1
            self._counts.last_error = why

    def status(self, connections: int, strangers: int) -> ListenerStatus:
        """Return the counts now."""
        with self._lock:
            return replace(
                self._counts,
                seconds=time.monotonic() - self._started,
                calls=dict(self._counts.calls),
                connections=connections,
                strangers=strangers,
            )


class RateLimitedLog:
    """Warnings that strangers can cause: a burst, then a few per second; the next one says how many were left out."""

    def __init__(self, burst: int = 20, per_second: float = 1.0) -> None:
        self._burst, self._per_second = burst, per_second
        self._lock = threading.Lock()
        self._allowance = float(burst)
        self._last = time.monotonic()
        self._left_out = 0

    def warning(self, text: str) -> None:
        """Log the text, or count it as left out."""
        with self._lock:
            now = time.monotonic()
            grown = self._allowance + (now - self._last) * self._per_second
            self._allowance, self._last = min(grown, self._burst), now
            if self._allowance < 1:
                self._left_out += 1
                return
            self._allowance -= 1
            left_out, self._left_out = self._left_out, 0
        _log.warning("%s%s", text, f" (and {left_out} more)" if left_out else "")


@dataclass(frozen=True)
class ListenerContext:
    """What all connections of one listener share.

    Attributes:
        handlers: Functions by name of call; more may be added while it runs.
        describe: Returns what an authenticated caller is told (`info`, `host_socket`).
        context: For TLS, if the listener speaks it.
        binding: Digest of the certificate it shows.
        stopping: Set when the listener stops.
        log: For warnings that callers can cause.
    """

    handlers: Mapping[str, Handler]
    credentials: Credentials
    limits: Limits
    describe: Callable[[], Mapping[str, Any]]
    counters: Counters
    context: ssl.SSLContext | None
    binding: bytes
    stopping: threading.Event
    log: RateLimitedLog


def authenticate(
    listener: ListenerContext, stream: Stream, channel: Channel, admit: Callable[[], None]
) -> str:
    """Authenticate a new connection; return the caller's name.

    Args:
        listener: What the listener's connections share.
        stream: The new connection.
        channel: The channel over it.
        admit: Called when the proof was right; may raise `LimitExceeded`.
    """
    deadline = Deadline(listener.limits.handshake_seconds)
    binding = b""
    if not stream.is_unix:
        is_tls = stream.peek(deadline) == _TLS_HANDSHAKE
        if listener.context is not None and is_tls:
            stream.secure(listener.context, True, deadline)
            binding = listener.binding
        elif listener.context is not None:
            channel.receive(deadline, deadline)
            channel.send("refused", {"kind": REFUSED_TLS}, (), deadline)
            raise AuthenticationError("it does not speak TLS and this server speaks nothing else")
        elif is_tls:
            # Read what it says and answer in clear: to the far side that is the sign of a server without TLS.
            stream.receive(memoryview(bytearray(BEFORE_AUTHENTICATION.header_bytes)), deadline)
            channel.send("refused", {"kind": "no tls"}, (), deadline)
            raise AuthenticationError("it speaks TLS and this server has no certificate")

    def admit_and_describe() -> Mapping[str, Any]:
        admit()
        return listener.describe()

    return handshake_as_server(
        channel,
        listener.credentials,
        binding,
        listener.limits,
        deadline,
        admit_and_describe,
        lambda: listener.stopping.wait(_PUNISHMENT_SECONDS),
    )


class AnsweredConnection:
    """An authenticated connection on which call follows call."""

    def __init__(self, listener: ListenerContext, channel: Channel, caller: Caller) -> None:
        self._listener = listener
        self._channel = channel
        self._caller = caller
        self._stall = Stall(listener.limits.stall_seconds)
        self._answer: _Answer | None = None

    def serve(self) -> TakeOver | None:
        """Answer calls until the far side leaves, sends bytes that are not a frame, or a handler wants the channel.

        Returns:
            The function that takes the channel over, if a handler gave one.
        """
        outcome: TakeOver | bool = True
        try:
            while outcome is True:
                outcome = self._serve_one()
        finally:
            if self._answer is not None:
                self._answer.close()
        return outcome or None

    def _serve_one(self) -> TakeOver | bool:
        """Serve one call; return whether another may follow, or what takes the channel over.

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
        channel.release_broadcast()
        if not is_in_turn:
            problem = ProtocolError("a call before the one before it was answered")
        if problem is not None:
            self._refuse(problem)
            return is_in_turn and channel.is_intact
        with DAEMON_WORK:
            return self._handle(message)

    def _refuse(self, error: RemoteError) -> None:
        caller = self._caller
        self._listener.log.warning(
            f"refused a message of {caller.name or 'a client'} at {caller.address}: {error}"
        )
        # Without a traceback: how this process got here does not concern the sender of such messages.
        fields = {"class": type(error).__name__, "message": str(error)}
        _, sent = self._channel.send(FAILED, fields, (), self._stall)
        self._listener.counters.count_call(_UNKNOWN_CALL, 0, sent, str(error))

    def _handle(self, message: Message) -> TakeOver | bool:
        """Run the handler and send its answer, unless another thread will."""
        listener, channel = self._listener, self._channel
        answer = self._answer = _Answer(listener, channel, self._stall, message)
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
            handler = listener.handlers.get(message.subject)
            if handler is None:
                raise UnknownCall(
                    f"no such call: {message.subject!r:.80}; this task answers {', '.join(sorted(listener.handlers))}"
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
    """The answer to one call: the first one given, by whichever thread."""

    __slots__ = ("_channel", "_counters", "_is_over", "_is_sent", "_lock", "_name", "_nbytes", "_stall")

    def __init__(self, listener: ListenerContext, channel: Channel, stall: Stall, message: Message) -> None:
        self._channel = channel
        self._stall = stall
        self._counters = listener.counters
        self._name = message.subject if message.subject in listener.handlers else _UNKNOWN_CALL
        self._nbytes = message.nbytes
        self._lock = threading.Lock()
        self._is_over = self._is_sent = False

    def respond(self, reply: Reply | Exception) -> bool:
        """Answer the call, as `Request.respond` says."""
        if not isinstance(reply, Reply):
            return self.fail(reply)
        try:
            with self._lock:
                if self._is_over:
                    return False
                self._is_over = True
                try:
                    nbytes = self._send(OK, reply.fields, reply.tensors)
                except (TaskLost, DeadlineExceeded):
                    raise
                except Exception as error:  # noqa: BLE001  the answer cannot be sent, and nothing of it was
                    self._send_failure(error)
                else:
                    self._counters.count_call(self._name, self._nbytes, nbytes)
                return True
        finally:
            if reply.after is not None:
                reply.after()

    def fail(self, error: BaseException) -> bool:
        """Send the error to the caller, unless it has an answer; return whether this was the first answer."""
        with self._lock:
            if self._is_over:
                self._counters.count_late_failure(self._name, _line(error))
                return False
            self._is_over = True
            self._send_failure(error)
            return True

    def close(self) -> bool:
        """Let nobody answer any more; return whether somebody has."""
        with self._lock:
            self._is_over = True
            return self._is_sent

    def _send_failure(self, error: BaseException) -> None:
        nbytes = self._send(FAILED, describe_failure(error), ())
        self._counters.count_call(self._name, self._nbytes, nbytes, _line(error))

    def _send(self, subject: str, fields: Fields, tensors: Sequence[Any]) -> int:
        """Send the answer; return its size in bytes."""
        try:
            nbytes = self._channel.send(subject, fields, tensors, self._stall)[1]
        except (TaskLost, DeadlineExceeded):
            # Another thread may be sending: the connection's own thread then finds it closed.
            self._channel.stream.wake()
            raise
        self._is_sent = True
        return nbytes


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error!s:.300}"
