"""Tensors that several callers are sent alike: one copy that all of them see, for as long as one of them uses it."""

import gc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from drills.processes import descriptors, until
from stratagem.errors import LimitExceeded
from stratagem.runtime.wire import Broadcast, BroadcastBuffers, Listener, Peer, Reply, Request
from stratagem.runtime.wire.arrays import Array
from stratagem.runtime.wire.frames import lay_out
from stratagem.runtime.wire.shared_memory import OutgoingSegment

SIZE = 100_000


class Press:
    """A task that shows the tensors of the day, and tells other things of about the same size, too."""

    def __init__(self) -> None:
        self.buffers = BroadcastBuffers()
        self.broadcast = Broadcast(self.buffers, [])
        self.print(0)

    def print(self, number: int) -> None:
        arrays = [np.full(SIZE, number, np.float32), np.full((), number), np.full((2, 0), number)]
        self.broadcast = Broadcast(self.buffers, arrays)

    def read(self, request: Request) -> Reply:
        return Reply(tensors=self.broadcast)

    def other(self, request: Request) -> Reply:
        return Reply(tensors=[np.full(SIZE + 1, -1, np.float32)])

    @property
    def readers(self) -> list[int]:
        return [buffer.readers for buffer in self.buffers._buffers]


@pytest.fixture
def press() -> Press:
    return Press()


@pytest.fixture
def peers(press: Press) -> Iterator[list[Peer]]:
    with Listener("127.0.0.1:0", {"read": press.read, "other": press.other}) as listener:
        made = [Peer(listener.address) for _ in range(3)]
        yield made
        for peer in made:
            peer.close()


def read(peer: Peer, name: str = "read", lend: bool = True) -> Array:
    tensors = peer.call(name, lend=lend).tensors
    if name == "read":
        assert [tensor.shape for tensor in tensors] == [(SIZE,), (), (2, 0)]
        assert tensors[0][0] == tensors[0][-1] == tensors[1]
    return tensors[0]


def test_all_see_one_copy(press: Press, peers: Sequence[Peer]) -> None:
    press.print(7)
    seen = [read(peer) for peer in peers]
    assert [int(array[0]) for array in seen] == [7, 7, 7]
    (buffer,) = press.buffers._buffers
    buffer.segment.places[0][5] = 8
    assert [int(array[5]) for array in seen] == [8, 8, 8]
    assert not seen[0].flags.writeable


def test_what_is_in_use_stays_as_it_is(press: Press, peers: Sequence[Peer]) -> None:
    first = read(peers[0])
    for number in range(1, 6):
        press.print(number)
        assert [int(read(peer)[9]) for peer in peers] == [number] * 3
    assert int(first[0]) == int(first[-1]) == 0
    assert len(press.readers) == 3, (
        "the one in use, today's, and that of the day before while it is being replaced"
    )


def test_buffers_that_nobody_needs_any_more_are_let_go(press: Press, peers: Sequence[Peer]) -> None:
    before = descriptors()
    held = []
    for number in range(6):
        press.print(number)
        held.append(read(peers[number % 3]))
    assert [int(array[0]) for array in held] == list(range(6))
    assert press.readers == [1] * 6
    del held
    for number in range(6, 9):
        press.print(number)
        for peer in peers:
            read(peer)
    # Connections that are idle have not come back yet: they may be called upon at any time.
    for peer in peers:
        peer.close()
    until("all connections are gone", lambda: not any(press.readers))
    press.print(10)
    kinds = [(array.dtype, array.shape) for array in press.broadcast]
    press.buffers.release(press.buffers.acquire(press.broadcast, lay_out(kinds, in_segment=True)))
    assert len(press.readers) == 2
    until("their descriptors are gone", lambda: descriptors() <= before + 4)


def test_a_reader_that_goes_needs_its_buffer_no_more(press: Press, peers: Sequence[Peer]) -> None:
    held = [read(peer) for peer in peers]
    assert press.readers == [3]
    del held
    peers[0].close()
    until("its buffer is free of it", lambda: press.readers == [2])


def test_other_answers_may_come_in_between(press: Press, peers: Sequence[Peer]) -> None:
    for number in range(5):
        press.print(number)
        for peer in peers:
            assert int(read(peer, lend=number % 2 == 0)[0]) == number
            assert int(read(peer, "other")[0]) == -1
            assert int(read(peer)[-1]) == number


def test_over_a_network_each_gets_its_own(press: Press) -> None:
    with (
        Listener("127.0.0.1:0", {"read": press.read}) as listener,
        Peer(listener.address, shared_memory=False) as far,
        Peer(listener.address) as near,
    ):
        press.print(3)
        assert read(far).flags.writeable
        assert not read(near).flags.writeable


def test_few_bytes_go_through_the_socket(press: Press, peers: Sequence[Peer]) -> None:
    press.broadcast = Broadcast(press.buffers, [np.arange(3)])
    assert peers[0].call("read", lend=True).tensors[0].tolist() == [0, 1, 2]
    assert press.readers == []


def test_without_memory_the_socket_carries_them(
    press: Press, peers: Sequence[Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reserve(segment: OutgoingSegment, size: int) -> None:
        raise LimitExceeded("no shared memory")

    press.print(1)
    monkeypatch.setattr(OutgoingSegment, "reserve", reserve)
    assert int(read(peers[0])[0]) == 1
    assert not any(press.readers)
    monkeypatch.undo()
    press.print(2)
    assert int(read(peers[0])[0]) == 2
    assert press.readers == [1]


def test_many_who_copy_at_once_leave_nothing_out() -> None:
    buffers = BroadcastBuffers()
    rng = np.random.default_rng(0)
    with ThreadPoolExecutor(6) as threads:
        for _ in range(20):
            arrays = [
                rng.random((1500, 300)),
                rng.random(7),
                rng.random((1, 90_000)),
                rng.random((40_000, 3)),
            ]
            broadcast = Broadcast(buffers, arrays)
            layout = lay_out([(array.dtype, array.shape) for array in broadcast], in_segment=True)
            acquired = list(threads.map(buffers.acquire, [broadcast] * 6, [layout] * 6))
            (buffer,) = set(acquired)
            for place, array in zip(buffer.segment.places, arrays, strict=True):
                assert np.array_equal(place, array)
            for _ in acquired:
                buffers.release(buffer)
    assert len(buffers._buffers) == 1


def test_the_memory_of_buffers_goes_with_them(press: Press, peers: Sequence[Peer]) -> None:
    def show() -> None:
        buffers = BroadcastBuffers()
        press.broadcast = Broadcast(buffers, [np.zeros(SIZE, np.float32), np.zeros(()), np.zeros((2, 0))])
        read(peers[0])
        gc.collect()

    show()
    before = descriptors()
    for _ in range(10):
        show()
    assert descriptors() <= before + 1
