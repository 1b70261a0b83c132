"""The calling end: named calls to one task, from any number of threads, each within its deadline."""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from stratagem.cluster import Address
from stratagem.environment import shared_memory as shared_memory_allowed
from stratagem.errors import DeadlineExceeded, ProtocolError, RemoteError, TaskLost, TaskUnreachable
from stratagem.runtime.wire.addresses import address_at
from stratagem.runtime.wire.answering import LOGGER
from stratagem.runtime.wire.arrays import Array
from stratagem.runtime.wire.calls import FAILED, OK, Response
from stratagem.runtime.wire.channels import Channel, Message
from stratagem.runtime.wire.credentials import Credentials
from stratagem.runtime.wire.dialing import Connection, ConnectionPool, Dialer, ExpectedTask
from stratagem.runtime.wire.error_translation import rebuild_failure
from stratagem.runtime.wire.frames import Fields
from stratagem.runtime.wire.limits import Limits
from stratagem.runtime.wire.shared_memory import Lease
from stratagem.runtime.wire.waiting import Deadline, WaitingLog, back_off

DEFAULT_TIMEOUT = 60.0
_HANDSHAKE_SECONDS = 10.0
_WORTH_TELLING = 0.05
"""Seconds that are told; in less there was one attempt."""
_NO_TIME = "its caller's time was over, or as good as over, before this call began"
_WATCH_SECONDS, _QUICK_SECONDS = 0.0004, 0.0008
"""How long to watch for an answer before going to sleep, and how quick the last one must have been for that."""


class Peer:
    """A task that can be called.

    Each call has a connection to itself for as long as it lasts; idle ones are kept for the next.

    Args:
        address: `host:port` of the task, with or without `sg://`.
        task: Its name: another task at the address is refused. Without one, whoever is there will do.
        credentials: The cluster's secret and TLS files.
        caller: The name by which this side is known there.
        run: The run of `stratagem run` that this side is a task of: tasks of others are refused.
        limits: What is accepted from it.
        shared_memory: Whether to use shared memory if it is on this host; `None` asks STRATAGEM_SHM.

    Attributes:
        info: What the task told of itself when last connected to.
        transport: How it was last connected to: `tcp`, `tls` or `shared memory`.

    Example:
        >>> peer = Peer("127.0.0.1:2222", task="/job:ps/task:0")
        >>> peer.call("read", {"name": "w"}, timeout=5).tensors[0]
    """

    def __init__(
        self,
        address: str | Address,
        task: str | None = None,
        credentials: Credentials | None = None,
        *,
        caller: str = "",
        run: str | None = None,
        limits: Limits | None = None,
        shared_memory: bool | None = None,
    ) -> None:
        credentials = credentials or Credentials()
        self.address = address_at(address)
        self._task = task
        self._dialer = Dialer(
            address=self.address,
            credentials=credentials,
            context=credentials.tls.client_context() if credentials.tls else None,
            caller=caller,
            expected=ExpectedTask(task, run),
            limits=limits or Limits(),
            shared_memory=shared_memory_allowed() if shared_memory is None else shared_memory,
        )
        self._pool = ConnectionPool()
        self._closing = threading.Event()
        self._host_socket: str | None = None
        self._waiting_log = WaitingLog()
        self.info: Fields = {}
        self.transport: str | None = None

    @property
    def task(self) -> str:
        """The task's name: as given, or as the task told, or its address."""
        return self._task or str(self.info.get("task") or self.address)

    @property
    def was_reached(self) -> bool:
        """Whether there has been a connection to it, so that it was up once."""
        return self.transport is not None

    @property
    def _where(self) -> str:
        name = self.task
        return name if name == str(self.address) else f"{name} at {self.address}"

    # ------------------------------------------------------------------ calls

    def call(
        self,
        name: str,
        fields: Mapping[str, Any] | None = None,
        tensors: Sequence[Any] = (),
        *,
        timeout: float = DEFAULT_TIMEOUT,
        into: Sequence[Array | None] | None = None,
        lend: bool = False,
        wait: bool = True,
    ) -> Response:
        """Call the task and wait for its answer.

        Args:
            name: Which call.
            fields: Plain values to send.
            tensors: Arrays to send.
            timeout: Seconds for all of it: to connect, to send, to wait and to receive; may be `math.inf`.
            into: Arrays to receive the answer's tensors into, in order; `None` for a new one.
            lend: On one host, let large tensors be read-only views of shared memory. Their connection serves no other
                call as long as any array made of them is in use.
            wait: Whether to go on trying to connect to a task that is not up yet.

        Returns:
            The answer; its tensors are the caller's own arrays, but for those that are lent.

        Raises:
            TaskUnreachable: No connection within the timeout (at once without `wait`).
            DeadlineExceeded: No answer within the timeout; the call may still have run.
            TaskLost: The connection broke during the call, which may have run: it is never repeated.
            ClusterError: Another task is at the address.
            StratagemError: Whatever of ours the handler raised, as the same class.
            RemoteCallError: Whatever else the handler raised.
        """
        return self.begin(name, fields, tensors, timeout=timeout, wait=wait).answer(into=into, lend=lend)

    def begin(
        self,
        name: str,
        fields: Mapping[str, Any] | None = None,
        tensors: Sequence[Any] = (),
        *,
        timeout: float = DEFAULT_TIMEOUT,
        wait: bool = True,
    ) -> "PendingCall":
        """Send a call, and come back for its answer later: see `call`, of which this is the first half.

        Over a network the answer may fill the connection and keep the far side from going on until it is received:
        come back soon, or leave that to a thread.

        Args:
            name: Which call.
            fields: Plain values to send.
            tensors: Arrays to send; they may be written to again once this returns.
            timeout: Seconds to connect and to send; the far side is told that it is waited for as long.
            wait: Whether to go on trying to connect to a task that is not up yet.
        """
        deadline = Deadline(timeout)
        connection = self._pool.take() or self._connect(name, deadline, wait)
        try:
            told = None if timeout == math.inf else deadline.left()
            connection.channel.send(name, dict(fields or {}), tensors, deadline, told)
        except BaseException as error:  # noqa: BLE001  raised again, with its context
            raise self._broken_off(connection, error, name, deadline) from None
        return PendingCall(self, connection, name, deadline)

    def open(
        self, name: str, fields: Mapping[str, Any] | None = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> Channel:
        """A connection for something else than calls: the handler of this call has the other end (`Reply.take_over`).

        It is the caller's to use, from one thread at a time, and to close. Raises what `call` raises.
        """
        return self.begin(name, fields, timeout=timeout)._kept()

    def _broken_off(
        self, connection: Connection, error: BaseException, name: str, deadline: Deadline
    ) -> BaseException:
        """Close a connection on which something went wrong, as what it would bring next is anybody's guess."""
        connection.channel.close()
        return self._in_context(error, name, deadline) if isinstance(error, RemoteError) else error

    def _in_context(self, error: RemoteError, name: str, deadline: Deadline) -> RemoteError:
        """The same error, saying which task and call it was."""
        where = self._where
        if isinstance(error, DeadlineExceeded) and deadline.seconds < _WORTH_TELLING:
            text = f"{where} did not answer {name!r}: {_NO_TIME}"
        elif isinstance(error, DeadlineExceeded):
            text = (
                f"{where} did not answer {name!r} within {deadline.seconds:g} s; the call may still have run "
                "there. If it needs longer, give it a larger timeout"
            )
        elif isinstance(error, TaskLost):
            text = (
                f"the connection to {where} broke during {name!r}, after {deadline.elapsed():.1f} s: {error}. "
                "The call may have run there"
            )
        else:
            text = f"calling {name!r} of {where}: {error}"
        found = type(error)(text)
        found.task = self.task
        return found

    # ------------------------------------------------------------ connections

    def _connect(self, name: str, deadline: Deadline, wait: bool) -> Connection:
        """A new connection; with `wait`, tried until the deadline."""
        pauses = back_off()
        silent = TaskUnreachable("it takes connections but does not answer")
        problem: RemoteError = silent
        if deadline.seconds < _WORTH_TELLING:
            problem = TaskUnreachable(_NO_TIME)
        while True:
            if self._closing.is_set():
                raise self._in_context(TaskLost("it was closed on this side"), name, deadline)
            try:
                connection = self._dialer.dial(
                    Deadline(min(deadline.left(), _HANDSHAKE_SECONDS)), self._host_socket
                )
            except (TaskUnreachable, TaskLost) as error:
                problem = error
            except DeadlineExceeded:
                if deadline.left() > 0:
                    problem = silent
            except RemoteError as error:
                raise self._in_context(error, name, deadline) from None
            else:
                self.info = connection.info
                self.transport = connection.transport
                self._host_socket = connection.host_socket
                return connection
            if not wait or deadline.left() <= 0:
                raise self._unreachable(problem, deadline) from None
            self._log_waiting(problem, deadline)
            self._closing.wait(min(next(pauses), deadline.left()))

    def _unreachable(self, problem: RemoteError, deadline: Deadline) -> TaskUnreachable:
        tried = deadline.elapsed()
        within = f" within {tried:.1f} s" if tried >= _WORTH_TELLING else ""
        error = TaskUnreachable(
            f"{self._where} could not be reached{within}: {problem}. Is it running, and is this its address?"
        )
        error.task = self.task
        return error

    def _log_waiting(self, problem: RemoteError, deadline: Deadline) -> None:
        # Many threads may wait for one task: one of them says so.
        if self._waiting_log.is_due(deadline.elapsed()):
            LOGGER.warning(
                "waiting for %s: %s (%.0f s so far, for at most %g s)",
                self._where,
                problem,
                deadline.elapsed(),
                deadline.seconds,
            )

    # ------------------------------------------------------------------- life

    def close(self) -> None:
        """Close idle connections, end all waiting for the task; calls under way end by themselves."""
        self._closing.set()
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PendingCall:
    """A call that was sent and whose answer has not been received; made by `Peer.begin`.

    Attributes:
        transport: How the task is connected to: `tcp`, `tls` or `shared memory`.
    """

    __slots__ = ("_connection", "_deadline", "_name", "_peer", "_sent_at", "transport")

    def __init__(self, peer: Peer, connection: Connection, name: str, deadline: Deadline) -> None:
        self._peer = peer
        self._connection = connection
        self.transport = connection.transport
        self._name = name
        self._deadline = deadline
        self._sent_at = time.perf_counter()

    def answer(
        self,
        *,
        timeout: float | None = None,
        into: Sequence[Array | None] | None = None,
        lend: bool = False,
    ) -> Response:
        """Wait for the answer, for so many seconds from now or, by default, until the time of `Peer.begin` is over.

        See `Peer.call`. To be called once.
        """
        deadline = self._deadline if timeout is None else Deadline(timeout)
        give_back = partial(self._peer._pool.give_back, self._connection)
        if lend:
            message = self._receive(deadline, into, Lease(give_back).lent)
        else:
            message = self._receive(deadline, into, None)
            give_back()
        if message.subject == FAILED:
            raise rebuild_failure(message.fields, self._peer.task)
        return Response(message.fields, message.tensors)

    def is_broken(self) -> bool:
        """Whether the far side has gone, so that there will be no answer unless it is here already."""
        return not self._connection.channel.stream.is_open()

    def abandon(self) -> None:
        """Do without the answer: the connection is closed."""
        self._connection.channel.close()

    def _kept(self) -> Channel:
        """The connection itself, once the far side has agreed to keep its end of it."""
        message = self._receive(self._deadline, None, None)
        if message.subject == FAILED:
            self.abandon()
            raise rebuild_failure(message.fields, self._peer.task)
        return self._connection.channel

    def _receive(
        self,
        deadline: Deadline,
        into: Sequence[Array | None] | None,
        borrow: Callable[[Array], Array] | None,
    ) -> Message:
        connection, channel = self._connection, self._connection.channel
        try:
            # Large tensors take the far side a while, and this processor.
            if connection.is_quick and borrow is None:
                channel.stream.watch(_WATCH_SECONDS)
            message = channel.receive(deadline, deadline, borrow=borrow, into=into)
            connection.is_quick = time.perf_counter() - self._sent_at < _QUICK_SECONDS
            if message.subject not in (OK, FAILED):
                raise ProtocolError(f"an answer that is neither {OK!r} nor {FAILED!r}")
        except BaseException as error:  # noqa: BLE001  raised again, with its context
            raise self._peer._broken_off(connection, error, self._name, deadline) from None
        return message
