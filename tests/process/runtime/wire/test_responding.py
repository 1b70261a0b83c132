"""Calls that are answered by another thread than that of their handler, which waits for it."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from drills.processes import until
from stratagem.errors import DeadlineExceeded, ProtocolError, TaskLost
from stratagem.runtime.wire import Listener, Peer, Reply, Request
from stratagem.runtime.wire.limits import Limits

LARGE = np.arange(100_000, dtype=np.float32)


class Desk:
    """Handlers that wait until somebody has answered for them, or lets them go."""

    def __init__(self) -> None:
        self.waiting: list[Request] = []
        self.go = threading.Event()
        self.fails = False

    def wait(self, request: Request) -> Reply:
        self.waiting.append(request)
        assert self.go.wait(20)
        if self.fails:
            raise RuntimeError("too late")
        return Reply({"by": "the handler"})

    def someone(self, count: int = 1) -> Request:
        until("somebody waits", lambda: len(self.waiting) == count)
        return self.waiting[-1]


@pytest.fixture
def desk() -> Desk:
    return Desk()


@contextmanager
def served(desk: Desk, **options: Any) -> Iterator[tuple[Listener, Peer]]:
    handlers = {"wait": desk.wait, "echo": lambda request: Reply(request.fields)}
    with Listener("127.0.0.1:0", handlers, **options) as listener, Peer(listener.address, **options) as peer:
        yield listener, peer


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_another_thread_answers_and_the_handler_does_not(
    desk: Desk, shared_memory: bool, fails: bool
) -> None:
    desk.fails = fails
    done: list[int] = []
    with served(desk, shared_memory=shared_memory) as (listener, peer), ThreadPoolExecutor(1) as threads:
        for number in range(1, 4):
            desk.go.clear()
            call = threads.submit(peer.call, "wait", {}, timeout=20, lend=True)
            after = partial(done.append, number)
            desk.someone(number).respond(Reply({"number": number}, [LARGE * number], after))
            answer = call.result(20)
            assert answer.fields == {"number": number}
            assert np.array_equal(answer.tensors[0], LARGE * number)
            assert done[-1] == number
            desk.go.set()
            del answer
            # What the handler returned, or raised, is not on its way: the next answer is that of the next call.
            assert peer.call("echo", {"a": number}).fields == {"a": number}
        until("all are counted", lambda: listener.status().calls == {"wait": 3, "echo": 3})
        assert listener.status().bytes_out > 3 * LARGE.nbytes
        assert listener.status().failures == (3 if fails else 0)


def test_what_cannot_be_sent_leaves_the_answer_to_the_handler(desk: Desk) -> None:
    with served(desk) as (_, peer), ThreadPoolExecutor(1) as threads:
        call = threads.submit(peer.call, "wait", {}, timeout=20)
        with pytest.raises(ProtocolError):
            desk.someone().respond(Reply({"by": object()}))
        desk.go.set()
        assert call.result(20).fields == {"by": "the handler"}


def test_one_who_has_gone_is_not_answered_and_its_connection_ends(desk: Desk) -> None:
    with served(desk) as (listener, peer):
        under_way = peer.begin("wait", {}, timeout=20)
        request = desk.someone()
        under_way.abandon()
        until("that is known here", request.is_abandoned)
        with pytest.raises(TaskLost):
            for _ in range(10):  # the first may still be taken by the system
                request.respond(Reply({}, [LARGE]))
        desk.go.set()
        until("its connection is gone", lambda: listener.status().connections == 0)
        assert peer.call("echo", {"a": 1}).fields == {"a": 1}


def test_one_who_does_not_read_is_given_up(desk: Desk) -> None:
    options = {"limits": Limits(stall_seconds=0.3), "shared_memory": False}
    with served(desk, **options) as (listener, peer):
        under_way = peer.begin("wait", {}, timeout=20)
        sock = under_way._connection.channel.stream._sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with pytest.raises(DeadlineExceeded):
            desk.someone().respond(Reply({}, [np.zeros(50_000_000, np.uint8)]))
        desk.go.set()
        until("its connection is gone", lambda: listener.status().connections == 0)
        under_way.abandon()
