"""Operations of a group as swaps of messages: every worker sends one to every other, and receives one from each."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, NoReturn

from stratagem.collectives.group_failure import GroupFailure, worker_left, worker_lost
from stratagem.collectives.group_state import GroupState, Operation, SwapHeader
from stratagem.collectives.liveness import Liveness
from stratagem.collectives.members import CallRegistry, Members
from stratagem.collectives.rendezvous import introduction
from stratagem.errors import ProtocolError, RemoteError, TaskUnreachable
from stratagem.runtime.wire import Reply, Request
from stratagem.runtime.wire.arrays import Array
from stratagem.runtime.wire.channels import Channel, Message, without_lease
from stratagem.runtime.wire.waiting import LOG_EVERY, Stall

_log = logging.getLogger("stratagem")
_CHANNELS: Final = 2
"""Channels between any two workers; see `Connections`."""
_AT_ONCE: Final = 32 << 10
"""This many bytes fit into any socket's buffer: sending them waits for nobody."""
_WATCH_SECONDS, _QUICK_SECONDS = 0.0004, 0.0008
"""Seconds to watch for a message before going to sleep, if the last one came within the second number of seconds."""
_SUBJECT: Final = "part"
_SAME: Final = 4
"""The number of leading fields of a swap's header that must be the same on all workers."""

Payload = Callable[[int, Channel], Sequence[Array]]
"""Returns the tensors to send to a worker through a channel."""


class Connections:
    """The channels on which the workers of a group swap messages: two between any two of them.

    The thread that runs the operations reads and writes them itself; no other thread has to be woken. Swaps alternate
    between the two: a worker that sends its next message has read the one before, so what came through shared memory
    stays as it is until this worker has sent its next message.

    Args:
        members: The workers.
        registry: Answers the others' calls.
        state: This worker's knowledge of the group.
        liveness: Watches the others.
    """

    def __init__(
        self, members: Members, registry: CallRegistry, state: GroupState, liveness: Liveness
    ) -> None:
        self._members = members
        self._state = state
        self._liveness = liveness
        self._channels: dict[tuple[int, int], Channel] = {}
        registry.register(members.name_of("connect"), self._handle_connect)

    def connect(self) -> None:
        """Connect to all workers, which have been met: the later ones dial, the earlier ones answer."""
        members, changed = self._members, self._liveness.changed
        seconds = members.options.forming
        for worker in range(members.index):
            for turn in range(_CHANNELS):
                fields = {**introduction(members, self._state), "turn": turn}
                peer = members.peers[members.tasks[worker]]
                self._add((worker, turn), peer.open(members.name_of("connect"), fields, timeout=seconds))
        count = _CHANNELS * len(members.others)
        with changed:
            changed.wait_for(lambda: len(self._channels) == count or self._state.has_ended, seconds)
            missing = [worker for worker in members.others if (worker, _CHANNELS - 1) not in self._channels]
        if missing and not self._state.has_ended:
            raise TaskUnreachable(
                f"{members.tasks[missing[0]]} was met, but did not connect within {seconds:g} s"
            )

    def channel(self, worker: int, turn: int) -> Channel:
        """Return the channel to a worker for a turn."""
        return self._channels[worker, turn % _CHANNELS]

    def _handle_connect(self, request: Request) -> Reply:
        worker, turn = request.fields.get("worker"), request.fields.get("turn")
        generation, token = request.fields.get("generation"), request.fields.get("token")
        if not (isinstance(worker, int) and isinstance(turn, int) and isinstance(token, str)):
            raise ProtocolError(f"a connection without an introduction: {request.fields!r:.200}")
        if not isinstance(generation, int) or not self._state.identify(worker, generation, token):
            raise ProtocolError(
                f"worker {worker} of generation {generation} is not the one that "
                f"{self._members.tasks[self._members.index]} has met. All workers must be started again together"
            )
        return Reply(take_over=partial(self._add, (worker, turn)))

    def _add(self, key: tuple[int, int], channel: Channel) -> None:
        with self._liveness.changed:
            is_too_late = self._state.has_ended
            if not is_too_late:
                self._channels[key] = channel
            self._liveness.changed.notify_all()
        if is_too_late:
            channel.close()

    def close(self) -> None:
        """Close all channels. Called when the group has ended, by the thread that used them."""
        with self._liveness.changed:
            channels = list(self._channels.values())
        for channel in channels:
            channel.close()


class SwapResult:
    """The other workers' messages of a swap.

    Attributes:
        tensors: Every other worker's tensors; read-only, and valid until this worker's next swap.
        empty: The workers that add nothing.
        all_done: Whether the data of every worker have ended.
    """

    def __init__(self, own: SwapHeader, index: int) -> None:
        self.tensors: dict[int, Sequence[Array]] = {}
        self.empty = {index} if own.is_empty else set()
        self.all_done = own.is_done

    def add(self, worker: int, header: SwapHeader, tensors: Sequence[Array]) -> None:
        """Add another worker's message."""
        self.tensors[worker] = tensors
        self.all_done = self.all_done and header.is_done
        if header.is_empty:
            self.empty.add(worker)


class Exchange:
    """This worker's end of every operation.

    Args:
        members: The workers.
        registry: Answers the others' calls.
        state: This worker's knowledge of the group.
        liveness: Watches the others.

    Attributes:
        connections: The channels to the other workers.
    """

    def __init__(
        self, members: Members, registry: CallRegistry, state: GroupState, liveness: Liveness
    ) -> None:
        self._members = members
        self._state = state
        self._liveness = liveness
        self.connections = Connections(members, registry, state, liveness)
        self._is_quick = True
        self._stall = Stall(members.options.timeout)
        # In this order any two workers come to each other at the same time: nobody waits in a circle.
        self._partners = sorted(members.others, key=lambda worker: (worker + members.index) % members.count)
        registry.register(members.name_of("describe"), self._handle_describe)

    @contextmanager
    def operation(self, operation: Operation) -> Iterator[None]:
        """Run one operation, which all workers must begin; its swaps go in the `with`.

        Raises:
            WorkerLost: A worker died, left, or did not answer in time.
            RemoteError: The workers do not do the same thing.
        """
        if self._state.has_ended:
            self._liveness.raise_failure()
        with self._liveness.changed:
            failure = self._state.begin(operation)
        if failure is not None:
            self._fail(failure)
        try:
            yield
        except BaseException as error:
            reason = f"it was interrupted in {self._state.place} by {type(error).__name__}"
            self._liveness.fail(worker_lost(self._members.tasks, self._members.index, reason))
            raise
        with self._liveness.changed:
            self._state.complete()

    def swap(self, payload: Payload, *, is_empty: bool = False, is_done: bool = False) -> SwapResult:
        """Send every other worker a message, and receive one from each."""
        own = self._state.next_swap(is_empty, is_done)
        result = SwapResult(own, self._members.index)
        later: dict[int, Sequence[Array]] = {}
        for worker in self._members.others:
            channel = self.connections.channel(worker, own.turn)
            tensors = payload(worker, channel)
            if channel.through_socket(tensors) > _AT_ONCE:
                later[worker], tensors = tensors, ()
            self._send(worker, channel, own._replace(has_more=worker in later), tensors)
        expected = []
        for worker in self._members.others:
            header, message = self._receive_first(worker, own)
            result.add(worker, header, message.tensors)
            if header.has_more:
                expected.append(worker)
        if later or expected:
            self._swap_more(own, later, expected, result)
        return result

    def _swap_more(
        self, own: SwapHeader, later: dict[int, Sequence[Array]], expected: Sequence[int], result: SwapResult
    ) -> None:
        """Swap what is too much to be sent before the other worker reads. All workers are there by now."""
        for worker in self._partners:
            channel = self.connections.channel(worker, own.turn)
            is_first = self._members.index < worker
            if is_first and worker in later:
                self._send(worker, channel, own, later[worker])
            if worker in expected:
                result.tensors[worker] = self._receive(worker, channel).tensors
            if not is_first and worker in later:
                self._send(worker, channel, own, later[worker])

    # ---------------------------------------------------------------- messages

    def _send(self, worker: int, channel: Channel, header: SwapHeader, tensors: Sequence[Array]) -> None:
        try:
            channel.send(_SUBJECT, header.to_fields(), tensors, self._stall)
        except RemoteError as error:
            self._fail_broken(worker, error)

    def _receive(self, worker: int, channel: Channel) -> Message:
        """Receive a worker's next message; wait as long as it is alive, and no longer than `patience`."""
        began = time.monotonic()
        if self._is_quick:
            channel.stream.spin(_WATCH_SECONDS)
        tasks, patience = self._members.tasks, self._members.options.patience
        while not channel.wait(min(LOG_EVERY, patience), self._liveness.alarm):
            waited = time.monotonic() - began
            if self._state.has_ended:
                self._liveness.raise_failure()
            if waited >= patience:
                reason = (
                    f"it answers, but has not come to the end of {self._state.place} within {patience:g} s"
                )
                self._fail(worker_lost(tasks, worker, reason))
            _log.warning(
                "waiting for %s to come to %s (%.0f s so far)", tasks[worker], self._state.place, waited
            )
        self._is_quick = time.monotonic() - began < _QUICK_SECONDS
        try:
            return channel.receive(self._stall, self._stall, borrow=without_lease)
        except RemoteError as error:
            self._fail_broken(worker, error)

    def _receive_first(self, worker: int, own: SwapHeader) -> tuple[SwapHeader, Message]:
        """Receive a worker's first message of a swap, and compare its header with our own."""
        message = self._receive(worker, self.connections.channel(worker, own.turn))
        header = SwapHeader.from_fields(message.fields)
        if header[:_SAME] != own[:_SAME]:
            failure = self._state.compare(own, worker, header)
            self._fail(self._difference(worker) if failure is None else failure)
        return header, message

    # ---------------------------------------------------------------- failures

    def _fail(self, failure: GroupFailure) -> NoReturn:
        self._liveness.fail(failure)
        self._liveness.raise_failure()

    def _fail_broken(self, worker: int, error: RemoteError) -> NoReturn:
        """Fail because the connection to a worker broke: it has left, or is lost."""
        tasks = self._members.tasks
        with self._liveness.changed:
            after = self._state.left.get(worker)
        if after is None:
            self._fail(worker_lost(tasks, worker, error))
        self._fail(worker_left(tasks, worker, after, self._members.index, self._state.place))

    def _difference(self, worker: int) -> GroupFailure:
        """Ask a worker for its arrays, which differ from this one's."""
        try:
            arguments = self._members.call(worker, "describe", {}).fields["arguments"]
        except RemoteError as error:
            return worker_lost(self._members.tasks, worker, error)
        return self._state.difference(worker, [str(argument) for argument in arguments])

    def _handle_describe(self, request: Request) -> Reply:
        return Reply({"arguments": list(self._state.operation.arguments)})
