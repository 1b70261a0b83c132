"""Pushes that are answered by whoever makes their update: once, whatever happens."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stratagem.errors import DeadlineExceeded, LimitExceeded, TaskLost
from stratagem.parameters.pushes import _Waiting
from stratagem.runtime.wire import Caller, Reply, Request


class Line:
    """What the connection of a call does with its answers."""

    def __init__(self, error: Exception | None = None) -> None:
        self.answers: list[Reply] = []
        self._error = error
        request = Request("push", {}, [], True, Caller("worker", "here"), respond=self._respond)
        self.waiting = _Waiting(request)

    def _respond(self, reply: Reply) -> None:
        self.answers.append(reply)
        if self._error is not None:
            raise self._error


def test_one_that_is_answered_is_not_its_handlers_any_more() -> None:
    line = Line()
    line.waiting.answer(Reply({"step": 1}))
    line.waiting.answer(Reply({"step": 1}))
    assert not line.waiting.claim()
    assert len(line.answers) == 1


def test_one_that_its_handler_has_claimed_is_answered_by_nobody_else() -> None:
    line = Line()
    assert line.waiting.claim()
    line.waiting.answer(Reply())
    assert not line.waiting.claim()
    assert line.answers == []


@pytest.mark.parametrize("error", [TaskLost("gone"), DeadlineExceeded("stuck")])
def test_on_a_connection_that_broke_the_handler_says_nothing(error: Exception) -> None:
    line = Line(error)
    line.waiting.answer(Reply())
    assert not line.waiting.claim()


def test_what_could_not_be_sent_is_the_handlers_to_tell() -> None:
    line = Line(LimitExceeded("too much"))
    line.waiting.answer(Reply())
    assert line.waiting.claim()


def test_a_handler_that_is_done_waits_for_the_answer_to_be_sent() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), []

    def respond(reply: Reply) -> None:
        begun.set()
        assert may_end.wait(20)
        ended.append(reply)

    waiting = _Waiting(Request("push", {}, [], True, Caller("worker", "here"), respond=respond))
    with ThreadPoolExecutor(2) as threads:
        answering = threads.submit(waiting.answer, Reply())
        assert begun.wait(20)
        claiming = threads.submit(waiting.claim)
        assert not claiming.done()
        may_end.set()
        assert claiming.result(20) is False
        assert len(ended) == 1, "the connection was the other thread's until then"
        answering.result(20)
