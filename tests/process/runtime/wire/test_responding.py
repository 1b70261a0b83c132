"""Calls that are answered by another thread than that of their handler, whether it waits for that or not."""

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
from stratagem.errors import DeadlineExceeded, ProtocolError, RemoteCallError, TaskLost
from stratagem.runtime.wire import LATER, Listener, Peer, Reply, Request
from stratagem.runtime.wire.limits import Limits
from stratagem.runtime.wire.waiting import Deadline

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

    def later(self, request: Request) -> Reply:
        self.waiting.append(request)
        return LATER

    def someone(self, count: int = 1) -> Request:
        until("somebody waits", lambda: len(self.waiting) == count)
        return self.waiting[-1]


@pytest.fixture
def desk() -> Desk:
    return Desk()


@contextmanager
def served(desk: Desk, **options: Any) -> Iterator[tuple[Listener, Peer]]:
    handlers = {"wait": desk.wait, "later": desk.later, "echo": lambda request: Reply(request.fields)}
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
        failures = 3 if fails else 0
        until("what failed is counted", lambda: listener.status().failures == failures)


def test_what_cannot_be_sent_is_told_to_the_caller(desk: Desk) -> None:
    with served(desk) as (_, peer), ThreadPoolExecutor(1) as threads:
        call = threads.submit(peer.call, "later", {}, timeout=20)
        assert desk.someone().respond(Reply({"by": object()}))
        with pytest.raises(ProtocolError, match="cannot be sent"):
            call.result(20)
        assert peer.call("echo", {"a": 1}).fields == {"a": 1}


def test_a_handler_need_not_wait_for_who_answers(desk: Desk) -> None:
    with served(desk) as (listener, peer), ThreadPoolExecutor(1) as threads:
        for number in range(1, 4):
            call = threads.submit(peer.call, "later", {}, timeout=20)
            request = desk.someone(number)
            assert request.respond(Reply({"number": number}, [LARGE * number]))
            answer = call.result(20)
            assert answer.fields == {"number": number}
            assert np.array_equal(answer.tensors[0], LARGE * number)
            assert not request.respond(Reply({"number": -1})), "the first answer is the one that counts"
        call = threads.submit(peer.call, "later", {}, timeout=20)
        assert desk.someone(4).respond(RuntimeError("no luck"))
        with pytest.raises(RemoteCallError, match="no luck"):
            call.result(20)
        until("all are counted", lambda: listener.status().calls == {"later": 4})
        assert listener.status().bytes_out > 3 * LARGE.nbytes
        assert listener.status().failures == 1
        assert listener.status().connections == 1


def test_one_who_calls_before_it_is_answered_is_refused(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    with served(desk) as (listener, peer):
        under_way = peer.begin("later", {}, timeout=20)
        request = desk.someone()
        under_way._connection.channel.send("echo", {"a": 1}, (), Deadline(20), 20.0)
        with pytest.raises(ProtocolError, match="before the one before it was answered"):
            under_way.answer(timeout=20)
        until("its connection is gone", lambda: listener.status().connections == 0)
        assert not request.respond(Reply()), "what is sent now could go to somebody else"
        assert "before the one before it" in caplog.text


def test_one_who_has_gone_is_not_answered_and_its_connection_ends(desk: Desk) -> None:
    with served(desk) as (listener, peer):
        under_way = peer.begin("wait", {}, timeout=20)
        request = desk.someone()
        under_way.abandon()
        until("that is known here", request.is_abandoned)
        with pytest.raises(TaskLost):
            request.respond(Reply({}, [LARGE]))
        desk.go.set()
        until("its connection is gone", lambda: listener.status().connections == 0)
        assert peer.call("echo", {"a": 1}).fields == {"a": 1}


def test_nobody_need_answer_for_a_connection_to_end(desk: Desk) -> None:
    with served(desk) as (listener, peer):
        under_way = peer.begin("later", {}, timeout=20)
        request = desk.someone()
        under_way.abandon()
        until("its connection is gone", lambda: listener.status().connections == 0)
        done: list[bool] = []
        assert not request.respond(Reply({}, [LARGE], after=lambda: done.append(True)))
        assert done == [True]
        still = peer.begin("later", {}, timeout=20)
        desk.someone(2)
    with pytest.raises(TaskLost):  # the listener did not wait for it to be answered
        still.answer(timeout=20)


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
