"""Making one connection to a task: TCP, TLS if asked for, the handshake, and shared memory on one host."""

import socket
import ssl
import struct
from dataclasses import dataclass, field

from stratagem.cluster import Address
from stratagem.errors import AuthenticationError, LimitExceeded, RemoteError, TaskLost, TaskUnreachable
from stratagem.runtime.wire.channels import Channel
from stratagem.runtime.wire.credentials import HOW_TO_SHARE, Credentials
from stratagem.runtime.wire.deadlines import Deadline
from stratagem.runtime.wire.foreign import during_connect, tls_hint
from stratagem.runtime.wire.frames import Fields
from stratagem.runtime.wire.handshake import Welcome, introduce
from stratagem.runtime.wire.identity import Expected
from stratagem.runtime.wire.limits import BEFORE_AUTHENTICATION, Limits
from stratagem.runtime.wire.streams import Stream, tune
from stratagem.runtime.wire.tls import digest

_ATTEMPT_SECONDS = 3.0
_NO_LINGER = struct.pack("ii", 1, 0)


SHARED_MEMORY = "shared memory"
"""The transport between tasks on one host."""


@dataclass(eq=False)
class Connection:
    """An authenticated connection.

    Attributes:
        channel: What carries the calls.
        info: What the server told of itself.
        transport: `tcp`, `tls`, or `shared memory`.
        host_socket: The server's Unix socket, where that is what this connection uses.
        idle_since: When it was last given back.
        is_quick: Whether the last answer came so fast that the next is worth staying awake for.
    """

    channel: Channel
    info: Fields
    transport: str
    host_socket: str | None = None
    idle_since: float = 0.0
    is_quick: bool = True


@dataclass(frozen=True)
class Dialer:
    """Makes connections to one address.

    Attributes:
        context: For TLS, if it is to be spoken.
        caller: The name to give to the server.
        shared_memory: Whether to move to shared memory if the server turns out to be on this host.
        expected: Who it has to be.
    """

    address: Address
    credentials: Credentials
    context: ssl.SSLContext | None
    caller: str
    limits: Limits
    shared_memory: bool
    expected: Expected = field(default_factory=Expected)

    def dial(self, deadline: Deadline, known_host_socket: str | None = None) -> Connection:
        """One attempt.

        Args:
            deadline: When to give up.
            known_host_socket: The server's Unix socket, if an earlier connection used it.

        Raises:
            TaskUnreachable: Nobody answers there (yet).
            TaskLost: It broke during the handshake: the server is coming up, going down, or full.
            AuthenticationError: The two sides do not belong together.
            ProtocolError: They do not speak the same protocol.
            ClusterError: Another task is there than the one that is expected.
        """
        if known_host_socket is not None:
            connection = self._dial_host(known_host_socket, deadline)
            if connection is not None:
                return connection
        connection, welcome = self._dial_network(deadline)
        if not self.shared_memory or welcome.host_socket is None:
            return connection
        try:
            on_host = self._dial_host(welcome.host_socket, deadline)
        except BaseException:
            connection.channel.close()
            raise
        if on_host is None:
            return connection
        connection.channel.close()
        return on_host

    def _dial_network(self, deadline: Deadline) -> tuple[Connection, Welcome]:
        stream = Stream(self._connect(deadline))
        channel = Channel(stream, BEFORE_AUTHENTICATION)
        try:
            binding = b""
            if self.context is not None:
                binding = digest(self._secure(stream, self.context, deadline))
            welcome = self._introduce(channel, binding, deadline)
        except AuthenticationError as error:
            channel.close()
            if (hint := tls_hint(error)) is not None:
                raise AuthenticationError(f"{hint} ({error})") from error
            raise
        except BaseException:
            channel.close()
            raise
        return Connection(channel, welcome.info, "tls" if stream.is_tls else "tcp"), welcome

    def _introduce(self, channel: Channel, binding: bytes, deadline: Deadline) -> Welcome:
        welcome = introduce(channel, self.credentials, self.caller, binding, self.limits, deadline)
        self.expected.check(self.address, welcome.info)
        return welcome

    def _connect(self, deadline: Deadline) -> socket.socket:
        address = self.address
        seconds = min(_ATTEMPT_SECONDS, deadline.remaining() or _ATTEMPT_SECONDS)
        try:
            sock = socket.create_connection((address.host, address.port), seconds)
        except OSError as error:
            raise during_connect(error) from error
        try:
            if sock.getsockname() == sock.getpeername():
                # A port that nobody listens at may be given to this very socket, which then meets itself.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                raise TaskUnreachable("Connection refused")
            tune(sock)
        except OSError as error:
            sock.close()
            raise during_connect(error) from error
        return sock

    def _secure(self, stream: Stream, context: ssl.SSLContext, deadline: Deadline) -> bytes | None:
        try:
            return stream.secure(context, False, deadline)
        except AuthenticationError as error:
            if tls_hint(error) is not None:
                raise
            raise AuthenticationError(f"its certificate and this side's CA do not fit ({error})") from error

    def _dial_host(self, name: str, deadline: Deadline) -> Connection | None:
        """Over the server's Unix socket; `None` if it is not on this host, or not any more."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(deadline.remaining())
            sock.connect("\0" + name)
        except (OSError, RemoteError):
            sock.close()
            return None
        stream = Stream(sock)
        channel = Channel(stream, BEFORE_AUTHENTICATION)
        try:
            if not self.credentials.has_secret and not stream.same_user():
                raise AuthenticationError(
                    f"the far side belongs to another user of this host: {HOW_TO_SHARE}"
                )
            welcome = self._introduce(channel, b"", deadline)
        except (TaskLost, AuthenticationError, LimitExceeded):
            # Somebody else may have the name now, or there is no room for one more. TCP will do, or tell.
            channel.close()
            return None
        except BaseException:
            channel.close()
            raise
        channel.shares_memory = True
        return Connection(channel, welcome.info, SHARED_MEMORY, name)
