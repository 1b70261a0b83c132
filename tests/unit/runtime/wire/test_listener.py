"""The connections of a listener."""

import socket
import threading

import pytest

from stratagem.errors import LimitExceeded
from stratagem.runtime.wire import Limits
from stratagem.runtime.wire.listener import ConnectionTable
from stratagem.runtime.wire.sockets import Stream


def test_the_oldest_stranger_gives_way_and_members_do_not() -> None:
    table = ConnectionTable(Limits(strangers=2, connections=1))
    pairs = [socket.socketpair() for _ in range(4)]
    streams = [Stream(pair[0]) for pair in pairs]
    done = threading.Event()
    try:
        for stream in streams[:2]:
            table.add(stream, threading.Thread(target=done.wait))
        table.promote(streams[0])
        table.add(streams[2], threading.Thread(target=done.wait))
        assert table.counts() == (1, 2)
        table.add(streams[3], threading.Thread(target=done.wait))
        assert [stream.is_open() for stream in streams] == [True, False, True, True]
        with pytest.raises(LimitExceeded):
            table.promote(streams[1])
        with pytest.raises(LimitExceeded, match="1 connections"):
            table.promote(streams[2])
        table.remove(streams[0])
        table.promote(streams[2])
    finally:
        done.set()
        for thread in table.close():
            thread.join()
        for pair in pairs:
            pair[0].close()
            pair[1].close()
