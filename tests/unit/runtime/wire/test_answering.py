"""The answer to a call, which any thread may give: as long as one sends it, the connection is that thread's."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stratagem.runtime.wire import Reply
from stratagem.runtime.wire.answering import Counters, RateLimitedLog, _Answer
from stratagem.runtime.wire.channels import Message
from stratagem.runtime.wire.waiting import Stall

SECONDS = 20.0


class SlowChannel:
    """A channel on which sending takes as long as the test wants."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.sent: list[str] = []

    def send(self, subject: str, *_: object) -> tuple[bytes, int]:
        self.begun.set()
        assert self.may_end.wait(SECONDS)
        self.sent.append(subject)
        return b"", 7


def test_whoever_ends_a_connection_waits_for_the_answer_that_is_being_sent() -> None:
    channel, counters = SlowChannel(), Counters()
    listener = SimpleNamespace(counters=counters, handlers={"push": None})
    message = Message("push", {}, [], None, b"", 5, False)
    answer = _Answer(cast(Any, listener), cast(Any, channel), Stall(None), message)
    with ThreadPoolExecutor(3) as threads:
        answering = threads.submit(answer.respond, Reply())
        assert channel.begun.wait(SECONDS)
        closing = threads.submit(answer.close)
        second = threads.submit(answer.respond, Reply())
        assert not closing.done()
        assert not second.done()
        channel.may_end.set()
        assert answering.result(SECONDS) is True
        assert closing.result(SECONDS) is True
        assert second.result(SECONDS) is False
    assert channel.sent == ["ok"]
    assert counters.status(0, 0).calls == {"push": 1}


def test_counters_count() -> None:
    counters = Counters()
    counters.count_call("a", 1, 2)
    counters.count_call("a", 1, 2, "broke")
    counters.count_accepted()
    counters.count_refused("why")
    found = counters.status(3, 4)
    assert found.calls == {"a": 2}
    assert (found.failures, found.bytes_in, found.bytes_out) == (1, 2, 4)
    assert (found.connections, found.strangers, found.accepted, found.refused) == (3, 4, 1, 1)
    assert found.last_error == "why"


def test_the_log_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    log = RateLimitedLog(burst=3, per_second=0.001)
    with caplog.at_level(logging.WARNING, "stratagem"):
        for _ in range(100):
            log.warning("a stranger")
    assert caplog.messages == ["a stranger"] * 3
