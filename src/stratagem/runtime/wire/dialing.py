"""Connections to a task: making one (TCP, TLS, the handshake, shared memory on one host), and keeping idle ones."""

import os
import socket
import ssl
import struct
import threading
import time
from dataclasses import dataclass, field

from stratagem.cluster import Address
from stratagem.devices import DeviceSpec
from stratagem.errors import (
    AuthenticationError,
    ClusterError,
    LimitExceeded,
    RemoteError,
    TaskLost,
    TaskUnreachable,
)
from stratagem.runtime.wire.channels import Channel
from stratagem.runtime.wire.credentials import HOW_TO_SHARE, Credentials, digest
from stratagem.runtime.wire.error_translation import during_connect, tls_hint
from stratagem.runtime.wire.frames import Fields
from stratagem.runtime.wire.handshake import Welcome, handshake_as_client
from stratagem.runtime.wire.limits import BEFORE_AUTHENTICATION, Limits
from stratagem.runtime.wire.sockets import Stream, tune
from stratagem.runtime.wire.waiting import Deadline

_ATTEMPT_SECONDS = 3.0
_IDLE_SECONDS = 60.0
_NO_LINGER = struct.pack("ii", 1, 0)
SHARED_MEMORY = "shared memory"
"""The transport between tasks on one host."""


@dataclass(frozen=True)
class ExpectedTask:
    """The task that a caller expects at an address; what is `None` is not compared.

    Lists of addresses do not prove that two tasks are of one cluster: a task may know only itself, and each may write hosts
    its own way.

    Attributes:
        task: Its name, such as `/job:ps/task:0`; a session's first connection expects no task in particular.
        run: The run of `stratagem run` that the caller is a task of, if it is one.
    """

    task: str | None = None
    run: str | None = None

    def check(self, address: Address, info: Fields) -> None:
        """Raise unless a server's description of itself is that of the expected task.

        Raises:
            ClusterError: It is another task, or one of another run.
        """
        task, run = info.get("task"), info.get("run")
        if self.task and task and task != self.task:
            job = DeviceSpec.from_string(self.task).job
            raise ClusterError(
                f"{address} is {task}, not {self.task}: check --{job}_hosts, or {job!r} in TF_CONFIG, and give every task "
                "of the job the same list"
            )
        if self.run and run and run != self.run:
            raise ClusterError(
                f"{address} is {task} of another run of `stratagem run` ({run}), not of this one ({self.run}): end "
                "that one, or give this one other ports"
            )


@dataclass(eq=False)
class Connection:
    """An authenticated connection.

    Attributes:
        channel: What carries the calls.
        info: The server's description of itself.
        transport: `tcp`, `tls`, or `shared memory`.
        host_socket: The server's Unix socket, if this connection uses it.
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
        context: For TLS, if it is to be used.
        caller: The name to give to the server.
        shared_memory: Whether to switch to shared memory if the server turns out to be on this host.
        expected: The task that has to be there.
    """

    address: Address
    credentials: Credentials
    context: ssl.SSLContext | None
    caller: str
    limits: Limits
    shared_memory: bool
    expected: ExpectedTask = field(default_factory=ExpectedTask)

    def dial(self, deadline: Deadline, known_host_socket: str | None = None) -> Connection:
        """Try once to connect.

        Args:
            deadline: When to give up.
            known_host_socket: The server's Unix socket, if an earlier connection used it.

        Raises:
            TaskUnreachable: No server answers there (yet).
            TaskLost: It broke during the handshake: the server is coming up, going down, or full.
            AuthenticationError: The two sides do not belong together.
            ProtocolError: They do not speak the same protocol.
            ClusterError: Another task is there than the expected one.
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
            welcome = self._shake_hands(channel, binding, deadline)
        except AuthenticationError as error:
            channel.close()
            if (hint := tls_hint(error)) is not None:
                raise AuthenticationError(f"{hint} ({error})") from error
            raise
        except BaseException:
            channel.close()
            raise
        return Connection(channel, welcome.info, "tls" if stream.is_tls else "tcp"), welcome

    def _shake_hands(self, channel: Channel, binding: bytes, deadline: Deadline) -> Welcome:
        welcome = handshake_as_client(channel, self.credentials, self.caller, binding, self.limits, deadline)
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
                # The kernel may give a port that nobody listens at to this very socket, which then connects to itself.
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
        """Connect to the server's Unix socket; return `None` if it is not on this host, or not any more."""
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
            welcome = self._shake_hands(channel, b"", deadline)
        except (TaskLost, AuthenticationError, LimitExceeded):
            # Another process may have the name now, or the server is full. TCP will do, or say what is wrong.
            channel.close()
            return None
        except BaseException:
            channel.close()
            raise
        channel.shares_memory = True
        return Connection(channel, welcome.info, SHARED_MEMORY, name)


class ConnectionPool:
    """Idle connections to one task, kept for the next call; never shared with a forked child.

    The connection used last is used next, so those at the bottom grow old and are closed.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        # Reentrant: its owner may let go of an array while it holds the lock, and so end a lease, which takes it again.
        self._lock = threading.RLock()
        self._idle: list[Connection] = []
        self._is_closed = False

    def take(self) -> Connection | None:
        """Return an idle connection that is still good, if there is one."""
        self._close_inherited()
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.channel.is_quiet():
                return connection
            connection.channel.close()

    def give_back(self, connection: Connection) -> None:
        """Keep a connection whose call is over and went well."""
        if self._process != os.getpid():
            connection.channel.close()
            return
        now = time.monotonic()
        connection.idle_since = now
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                self._idle.append(connection)
            dropped = []
            while self._idle and now - self._idle[0].idle_since > _IDLE_SECONDS:
                dropped.append(self._idle.pop(0))
        if is_closed:
            dropped.append(connection)
        for each in dropped:
            each.channel.close()

    def close(self) -> None:
        """Close all idle connections, and from now on all that are given back."""
        self._close_inherited()
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.channel.close()

    def _close_inherited(self) -> None:
        """In a forked child, close its copies of the sockets, which leaves the parent's as they are."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        # Another thread of the parent may have held the lock at the fork; nobody here will release it.
        self._lock = threading.RLock()
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.channel.close()
