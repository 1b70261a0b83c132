"""The listening end: accepts connections, gives each a thread, and answers calls with handlers."""

import logging
import secrets
import selectors
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from stratagem.cluster import Address
from stratagem.environment import shared_memory as shared_memory_allowed
from stratagem.errors import LimitExceeded, RemoteError, TaskLost
from stratagem.runtime.wire.addresses import address_at, bind, describe, listen, listen_on_host
from stratagem.runtime.wire.answering import (
    AnsweredConnection,
    Counters,
    ListenerContext,
    ListenerStatus,
    RateLimitedLog,
    authenticate,
)
from stratagem.runtime.wire.calls import Caller, Handler
from stratagem.runtime.wire.channels import Channel
from stratagem.runtime.wire.credentials import Credentials
from stratagem.runtime.wire.error_translation import reason
from stratagem.runtime.wire.frames import Fields
from stratagem.runtime.wire.limits import BEFORE_AUTHENTICATION, Limits
from stratagem.runtime.wire.sockets import Stream, tune
from stratagem.runtime.wire.waiting import Deadline

_log = logging.getLogger("stratagem")
_OUT_OF_DESCRIPTORS_WAIT = 0.1


class ConnectionTable:
    """The connections of one listener, each with its thread: strangers, and members, who have been authenticated.

    Strangers never keep members out, and the stranger that has waited longest is displaced by a new one: a connection that
    stays silent cannot keep out one that does not.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._threads: dict[Stream, threading.Thread] = {}
        self._strangers: dict[Stream, None] = {}
        self._members: set[Stream] = set()
        self._is_closed = False

    def add(self, stream: Stream, thread: threading.Thread) -> None:
        """Add a stranger and start its thread; wake the oldest stranger to leave if there are too many."""
        with self._lock:
            if self._is_closed:
                raise LimitExceeded("the listener has stopped")
            if len(self._strangers) >= max(1, self._limits.strangers):
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                oldest.wake()
            self._strangers[stream] = None
            self._threads[stream] = thread
        try:
            thread.start()
        except RuntimeError as error:
            self.remove(stream)
            raise LimitExceeded(f"no thread for a connection: {error}") from error

    def promote(self, stream: Stream) -> None:
        """Make an authenticated stranger a member; raise `LimitExceeded` if there are too many members."""
        with self._lock:
            if stream not in self._strangers:
                raise LimitExceeded("authenticated too late")
            if len(self._members) >= self._limits.connections:
                raise LimitExceeded(
                    f"{self._limits.connections} connections are open, which is all that may be"
                )
            del self._strangers[stream]
            self._members.add(stream)

    def remove(self, stream: Stream) -> None:
        """Remove a connection that is over."""
        with self._lock:
            self._strangers.pop(stream, None)
            self._members.discard(stream)
            self._threads.pop(stream, None)

    def counts(self) -> tuple[int, int]:
        """Return the number of members and of strangers."""
        with self._lock:
            return len(self._members), len(self._strangers)

    def close(self) -> list[threading.Thread]:
        """Wake all connections to leave, and add no more; return the threads to wait for."""
        with self._lock:
            self._is_closed = True
            for stream in self._threads:
                stream.wake()
            return list(self._threads.values())


class Listener:
    """Answers named calls at an address, and through shared memory for callers on the same host.

    It is bound when made, so that the address is known and handlers can be registered; `start` (or `with`) lets callers in.

    Args:
        where: `host:port` (port 0 takes a free one), or a bound socket, which is taken over.
        handlers: Functions by name of call.
        info: Plain values that a caller is told when it connects: the task's name, its platform and so on.
        credentials: The cluster's secret and TLS files.
        limits: What is accepted.
        insecure: Allow an address that others can reach although there is no secret.
        shared_memory: Whether callers on this host get shared memory; `None` asks STRATAGEM_SHM.

    Raises:
        AuthenticationError: There is no secret and the address is open to others, or TLS files do not fit.
        TaskUnreachable: The address cannot be listened at.

    Example:
        >>> with Listener("127.0.0.1:0", {"ping": lambda request: Reply({"pong": 1})}) as listener:
        ...     Peer(listener.address).call("ping").fields
        {'pong': 1}
    """

    def __init__(
        self,
        where: str | Address | socket.socket,
        handlers: Mapping[str, Handler] | None = None,
        *,
        info: Mapping[str, Any] | None = None,
        credentials: Credentials | None = None,
        limits: Limits | None = None,
        insecure: bool = False,
        shared_memory: bool | None = None,
    ) -> None:
        credentials, limits = credentials or Credentials(), limits or Limits()
        tls = credentials.tls
        self._handlers: dict[str, Handler] = dict(handlers or {})
        self._info: Fields = dict(info or {})
        self._host_socket_name: str | None = None
        self._context = ListenerContext(
            handlers=self._handlers,
            credentials=credentials,
            limits=limits,
            describe=lambda: {"info": self._info, "host_socket": self._host_socket_name},
            counters=Counters(),
            context=tls.server_context(credentials.has_secret) if tls else None,
            binding=tls.binding() if tls else b"",
            stopping=threading.Event(),
            log=RateLimitedLog(),
        )
        self._connections = ConnectionTable(limits)
        self._callers: dict[Stream, str] = {}
        self._thread: threading.Thread | None = None
        self._sockets = [where if isinstance(where, socket.socket) else bind(address_at(where))]
        try:
            self.address = listen(self._sockets[0], credentials.has_secret, insecure)
            if shared_memory_allowed() if shared_memory is None else shared_memory:
                self._host_socket_name = f"stratagem-{secrets.token_hex(16)}"
                self._sockets.append(listen_on_host(self._host_socket_name))
        except BaseException:
            self._close_sockets()
            raise
        self._waker, self._woken = socket.socketpair()

    def register(self, name: str, handler: Handler) -> None:
        """Answer calls of that name with a function, which replaces an earlier one."""
        self._handlers[name] = handler

    def tell(self, **info: Any) -> None:
        """Add to what a caller is told when it connects: values that are known only once the address is bound."""
        self._info = {**self._info, **info}

    def callers(self) -> set[str]:
        """Return the names of the connected callers."""
        return set(self._callers.copy().values())

    def status(self) -> ListenerStatus:
        """Return the counts so far."""
        return self._context.counters.status(*self._connections.counts())

    # ------------------------------------------------------------------- life

    def start(self) -> Self:
        """Let callers in."""
        if self._thread is None and not self._context.stopping.is_set():
            selector = selectors.DefaultSelector()
            for sock in (*self._sockets, self._woken):
                # Ready is a hint: the caller may be gone by the time it is accepted.
                sock.setblocking(False)
                selector.register(sock, selectors.EVENT_READ)
            self._thread = threading.Thread(
                target=self._accept_all, args=(selector,), name="stratagem-accept", daemon=True
            )
            self._thread.start()
        return self

    def stop(self, timeout: float = 2.0) -> bool:
        """Close the address and all connections; return whether all threads ended in time.

        A handler that does not return keeps its thread; the thread does not keep the process.
        """
        deadline = Deadline(timeout)
        was_stopping = self._context.stopping.is_set()
        self._context.stopping.set()
        if not was_stopping:
            self._waker.send(b"x")
        if self._thread is not None:
            self._thread.join(deadline.left())
        threads = self._connections.close()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(deadline.left())
        if not was_stopping:
            self._close_sockets()
            self._waker.close()
            self._woken.close()
        return not any(thread.is_alive() for thread in threads)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.stop()

    def _close_sockets(self) -> None:
        for sock in self._sockets:
            sock.close()

    # -------------------------------------------------------------- accepting

    def _accept_all(self, selector: selectors.BaseSelector) -> None:
        with selector:
            while not self._context.stopping.is_set():
                for key, _ in selector.select():
                    if key.fileobj is not self._woken and isinstance(key.fileobj, socket.socket):
                        self._accept(key.fileobj)

    def _accept(self, listening: socket.socket) -> None:
        try:
            sock, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            return
        except OSError as error:
            # Most often too many open files: the caller stays in the queue until there is room again.
            if not self._context.stopping.is_set():
                self._context.log.warning(f"cannot accept connections at {self.address}: {reason(error)}")
                self._context.stopping.wait(_OUT_OF_DESCRIPTORS_WAIT)
            return
        try:
            tune(sock)
            stream = Stream(sock)
            thread = threading.Thread(
                target=self._serve, args=(stream, describe(sock)), name="stratagem-serve", daemon=True
            )
            self._connections.add(stream, thread)
        except (OSError, LimitExceeded) as error:
            self._context.log.warning(f"cannot serve a connection at {self.address}: {error}")
            with suppress(OSError):
                sock.close()

    def _serve(self, stream: Stream, address: str) -> None:
        channel = Channel(stream, BEFORE_AUTHENTICATION)
        take_over = None
        try:
            name = self._authenticate(stream, channel, address)
            if name is not None:
                self._callers[stream] = name
                channel.shares_memory = stream.is_unix
                caller = Caller(name, address, stream.far_process() if stream.is_unix else None)
                take_over = AnsweredConnection(self._context, channel, caller).serve()
        except TaskLost as error:
            _log.debug("the connection from %s broke: %s", address, error)
        except RemoteError as error:
            _log.warning("gave up the connection from %s: %s", address, error)
        finally:
            self._connections.remove(stream)
            self._callers.pop(stream, None)
            if take_over is None:
                channel.close()
        if take_over is not None:
            take_over(channel)

    def _authenticate(self, stream: Stream, channel: Channel, address: str) -> str | None:
        """Return the caller's name; `None`, with a line in the log, if it does not belong here."""
        try:
            name = authenticate(self._context, stream, channel, lambda: self._connections.promote(stream))
        except TaskLost as error:
            # Not worth a warning: a probe of the port, or one of too many strangers.
            _log.debug("the connection from %s broke during the handshake: %s", address, error)
            return None
        except RemoteError as error:
            if not self._context.stopping.is_set():
                stream.linger()
                self._context.counters.count_refused(f"{address}: {error}")
                self._context.log.warning(f"refused a connection from {address} to {self.address}: {error}")
            return None
        self._context.counters.count_accepted()
        return name
