"""The calling end: named calls to one task, from any number of threads, each within its deadline."""

import logging
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

_log = logging.getLogger("stratagem")
DEFAULT_TIMEOUT = 60.0
_HANDSHAKE_SECONDS = 10.0
_WORTH_REPORTING = 0.05
"""Shorter times are left out of messages: there was only one attempt."""
_NO_TIME = "its caller's time was over, or as good as over, before this call began"
_SPIN_SECONDS, _QUICK_SECONDS = 0.0004, 0.0008
"""How long to spin for an answer before going to sleep, and how quick the last one must have been for that."""


class Peer:
    """A task that can be called.

    Each call has a connection to itself while it lasts; idle connections are kept for the next call.

    Args:
        address: `host:port` of the task, with or without `sg://`.
        task: Its name: another task at the address is refused. Without a name, any task is accepted.
        credentials: The cluster's secret and TLS files.
        caller: The name by which this side is known there.
        run: The run of `stratagem run` that this side is a task of: tasks of other runs are refused.
        limits: What is accepted from it.
        shared_memory: Whether to use shared memory if it is on this host; `None` asks STRATAGEM_SHM.

    Attributes:
        info: The task's description of itself at the last connection.
        transport: The transport of the last connection: `tcp`, `tls` or `shared memory`.

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
        """The task's name: as given, or by its own description, or its address."""
        return self._task or str(self.info.get("task") or self.address)

    @property
    def was_reached(self) -> bool:
        """True if there has been a connection to it, so that it was up once."""
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
            name: The name of the call.
            fields: Plain values to send.
            tensors: Arrays to send.
            timeout: Seconds to connect, send, wait and receive, all together; may be `math.inf`.
            into: Arrays to receive the answer's tensors into, in order; `None` for a new one.
            lend: On one host, let large tensors be read-only views of shared memory. Their connection serves no other
                call as long as any array made of them is in use.
            wait: Whether to keep trying to connect to a task that is not up yet.

        Returns:
            The answer; its tensors are the caller's own arrays, except those that are lent.

        Raises:
            TaskUnreachable: No connection within the timeout (at once without `wait`).
            DeadlineExceeded: No answer within the timeout; the call may still have run.
            TaskLost: The connection broke during the call, which may have run: it is never repeated.
            ClusterError: Another task is at the address.
            StratagemError: The handler raised an error of ours; it is raised here as the same class.
            RemoteCallError: The handler raised any other error.
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
        """Send a call whose answer is received later: the first half of `call`.

        Over a network the answer may fill the connection and keep the far side from going on until it is received: receive it
        soon, or leave that to a thread.

        Args:
            name: The name of the call.
            fields: Plain values to send.
            tensors: Arrays to send; they may be written to again once this returns.
            timeout: Seconds to connect and to send; the far side is told that the answer is awaited as long.
            wait: Whether to keep trying to connect to a task that is not up yet.
        """
        deadline = Deadline(timeout)
        connection = self._pool.take() or self._connect(name, deadline, wait)
        try:
            seconds = None if timeout == math.inf else deadline.left()
            connection.channel.send(name, dict(fields or {}), tensors, deadline, seconds)
        except BaseException as error:  # noqa: BLE001  raised again, with its context
            raise self._close_failed(connection, error, name, deadline) from None
        return PendingCall(self, connection, name, deadline)

    def open(
        self, name: str, fields: Mapping[str, Any] | None = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> Channel:
        """Open a connection for something else than calls; the handler of this call gets the other end (`Reply.take_over`).

        The caller may use the channel from one thread at a time, and has to close it. Raises what `call` raises.
        """
        return self.begin(name, fields, timeout=timeout)._take_over()

    def _close_failed(
        self, connection: Connection, error: BaseException, name: str, deadline: Deadline
    ) -> BaseException:
        """Close a connection on which a call failed, since its next bytes could be anything; return the error in context."""
        connection.channel.close()
        return self._with_context(error, name, deadline) if isinstance(error, RemoteError) else error

    def _with_context(self, error: RemoteError, name: str, deadline: Deadline) -> RemoteError:
        """Return the same error with a message that names the task and the call."""
        where = self._where
        if isinstance(error, DeadlineExceeded) and deadline.seconds < _WORTH_REPORTING:
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
        with_context = type(error)(text)
        with_context.task = self.task
        return with_context

    # ------------------------------------------------------------ connections

    def _connect(self, name: str, deadline: Deadline, wait: bool) -> Connection:
        """Return a new connection; with `wait`, try until the deadline."""
        pauses = back_off()
        silent = TaskUnreachable("it takes connections but does not answer")
        problem: RemoteError = silent
        if deadline.seconds < _WORTH_REPORTING:
            problem = TaskUnreachable(_NO_TIME)
        while True:
            if self._closing.is_set():
                raise self._with_context(TaskLost("it was closed on this side"), name, deadline)
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
                raise self._with_context(error, name, deadline) from None
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
        elapsed = deadline.elapsed()
        within = f" within {elapsed:.1f} s" if elapsed >= _WORTH_REPORTING else ""
        error = TaskUnreachable(
            f"{self._where} could not be reached{within}: {problem}. Is it running, and is this its address?"
        )
        error.task = self.task
        return error

    def _log_waiting(self, problem: RemoteError, deadline: Deadline) -> None:
        # Many threads may wait for one task: only one of them logs it.
        if self._waiting_log.is_due(deadline.elapsed()):
            _log.warning(
                "waiting for %s: %s (%.0f s so far, for at most %g s)",
                self._where,
                problem,
                deadline.elapsed(),
                deadline.seconds,
            )

    # ------------------------------------------------------------------- life

    def close(self) -> None:
        """Close idle connections and end all waiting for the task; pending calls end by themselves."""
        self._closing.set()
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PendingCall:
    """A call that was sent and whose answer has not been received; made by `Peer.begin`.

    Attributes:
        transport: The transport of its connection: `tcp`, `tls` or `shared memory`.
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
        """Receive the answer, as `Peer.call` does; may be called once.

        By default this waits until the timeout of `Peer.begin` is over, otherwise for `timeout` seconds from now.
        """
        deadline = self._deadline if timeout is None else Deadline(timeout)
        connection, pool = self._connection, self._peer._pool
        if lend:
            message = self._receive(deadline, into, Lease(partial(pool.give_back, connection)).lend)
        else:
            message = self._receive(deadline, into, None)
            pool.give_back(connection)
        if message.subject == FAILED:
            raise rebuild_failure(message.fields, self._peer.task)
        return Response(message.fields, message.tensors)

    def is_broken(self) -> bool:
        """Return whether the far side has gone, so that no answer will come unless it is here already."""
        return not self._connection.channel.stream.is_open()

    def abandon(self) -> None:
        """Close the connection without receiving the answer."""
        self._connection.channel.close()

    def _take_over(self) -> Channel:
        """Return the channel, once the far side has agreed to take over its end."""
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
                channel.stream.spin(_SPIN_SECONDS)
            message = channel.receive(deadline, deadline, borrow=borrow, into=into)
            connection.is_quick = time.perf_counter() - self._sent_at < _QUICK_SECONDS
            if message.subject not in (OK, FAILED):
                raise ProtocolError(f"an answer that is neither {OK!r} nor {FAILED!r}")
        except BaseException as error:  # noqa: BLE001  raised again, with its context
            raise self._peer._close_failed(connection, error, self._name, deadline) from None
        return message
