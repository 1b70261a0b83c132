"""Connections that are kept for something else than calls: both ends send and receive as they like."""

import os
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from process.runtime.wire.certificates import Authority
from stratagem.errors import DeadlineExceeded, RemoteError, TaskLost
from stratagem.runtime.wire import TLS, Credentials, Listener, Peer, Reply, Request
from stratagem.runtime.wire.channels import SHARED_FROM, Channel, without_lease
from stratagem.runtime.wire.waiting import FOREVER, Stall

STALL = Stall(10.0)
LARGE = 4 * SHARED_FROM
OPEN = Credentials()


@contextmanager
def ends(
    shared_memory: bool, served: Credentials = OPEN, calling: Credentials = OPEN
) -> Iterator[tuple[Channel, Channel]]:
    """The two ends of a kept connection."""
    kept: queue.SimpleQueue[Channel] = queue.SimpleQueue()

    def keep(request: Request) -> Reply:
        return Reply({"kept": True}, take_over=kept.put)

    with (
        Listener("127.0.0.1:0", {"keep": keep}, credentials=served, shared_memory=shared_memory) as listener,
        Peer(listener.address, credentials=calling, shared_memory=shared_memory) as peer,
    ):
        near = peer.open("keep", timeout=10)
        far = kept.get(timeout=10)
        # It is no connection of the listener any more, which leaves it alone when it stops.
        assert listener.stop()
        try:
            yield near, far
        finally:
            near.close()
            far.close()


@pytest.mark.parametrize("shared_memory", [True, False])
def test_lent_memory_arrives_as_it_was_written(shared_memory: bool) -> None:
    with ends(shared_memory) as (near, far):
        for value, size in [(1, LARGE), (2, 100), (3, 8 * LARGE), (4, LARGE), (5, 0)]:
            for one, other in [(near, far), (far, near)]:
                room = one.lend(size)
                room.fill(value)
                carried = 0 if shared_memory and size >= SHARED_FROM else size
                assert one.through_socket([room]) == carried
                one.send("part", {"value": value}, [room], STALL)
                message = other.receive(STALL, STALL, borrow=without_lease)
                assert message.fields == {"value": value}
                assert message.borrowed == (carried != size)
                assert message.tensors[0].tolist() == [value] * size


def test_messages_that_are_alike_come_in_the_same_memory() -> None:
    with ends(True) as (near, far):
        places = []
        for value in (1, 2, 3):
            near.send("part", {}, [np.full(LARGE, value, np.uint8), np.full(3, value, np.float32)], STALL)
            bytes_, floats = far.receive(STALL, STALL, borrow=without_lease).tensors
            assert (bytes_ == value).all()
            assert floats.tolist() == [value] * 3
            places.append((bytes_.ctypes.data, floats.ctypes.data))
            assert not floats.ctypes.data % 64
        assert places[1] == places[2]
        assert not floats.flags.writeable, "it is nobody's to keep"
        near.send("other", {}, [np.full(LARGE + 1, 4, np.uint8)], STALL)
        assert (far.receive(STALL, STALL, borrow=without_lease).tensors[0] == 4).all()
        near.send("part", {}, [np.full(LARGE, 5, np.uint8), np.full(3, 5, np.float32)], STALL)
        assert (far.receive(STALL, STALL).tensors[0] == 5).all()


@pytest.mark.parametrize("way", ["shared memory", "tcp", "tls"])
def test_who_waits_for_ever_waits_longer_than_the_last_message_could_take(way: str, tmp_path: Path) -> None:
    served = calling = OPEN
    if way == "tls":
        files = Authority(tmp_path).issue("server")
        served, calling = Credentials("pepper", TLS(*files)), Credentials("pepper", TLS(files[0]))
    with ends(way == "shared memory", served, calling) as (near, far), ThreadPoolExecutor(1) as threads:
        near.send("first", {}, [np.zeros(LARGE, np.uint8)], STALL)
        far.receive(Stall(0.2), Stall(0.2))
        second = threads.submit(far.receive, FOREVER, Stall(0.2))
        with pytest.raises(TimeoutError):
            second.result(timeout=1.0)
        near.send("second", {}, [np.zeros(LARGE, np.uint8)], STALL)
        assert second.result(timeout=10).subject == "second"
        with pytest.raises(DeadlineExceeded):
            far.receive(Stall(0.2), Stall(0.2))


def test_memory_that_was_lent_and_not_sent_is_announced_with_what_is() -> None:
    with ends(True) as (near, far):
        near.lend(LARGE)
        near.send("part", {}, [np.full(LARGE, 7, np.uint8)], STALL)
        assert (far.receive(STALL, STALL, borrow=without_lease).tensors[0] == 7).all()


def test_a_segment_may_come_with_the_second_of_two_messages() -> None:
    with ends(True) as (near, far):
        near.send("first", {}, (), STALL)
        near.send("second", {}, [np.full(LARGE, 7, np.uint8)], STALL)
        first = far.receive(STALL, STALL, borrow=without_lease)
        assert (first.subject, first.borrowed) == ("first", False)
        assert (far.receive(STALL, STALL, borrow=without_lease).tensors[0] == 7).all()


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_wait_ends_with_a_message_an_alarm_or_the_connection(shared_memory: bool) -> None:
    alarm = os.eventfd(0)
    try:
        with ends(shared_memory) as (near, far):
            assert not near.wait(0.0, alarm)
            os.eventfd_write(alarm, 1)
            assert not near.wait(60.0, alarm)
            os.eventfd_read(alarm)
            far.send("one", {}, (), STALL)
            far.send("two", {}, (), STALL)
            assert near.wait(60.0, alarm)
            assert near.receive(STALL, STALL).subject == "one"
            assert near.wait(60.0, alarm)
            assert near.receive(STALL, STALL).subject == "two"
            far.close()
            assert near.wait(60.0, alarm)
            with pytest.raises(TaskLost):
                near.receive(STALL, STALL)
    finally:
        os.close(alarm)


def test_what_is_refused_is_not_kept() -> None:
    with Listener("127.0.0.1:0") as listener, Peer(listener.address) as peer:
        with pytest.raises(RemoteError, match="no such call"):
            peer.open("keep", timeout=10)
        assert listener.stop()
