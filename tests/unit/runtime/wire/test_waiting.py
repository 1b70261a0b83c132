"""How often the log says whom a task waits for, and how long the pauses between two attempts are."""

import math
from itertools import islice, pairwise

import pytest

from stratagem.errors import DeadlineExceeded
from stratagem.runtime.wire.waiting import FOREVER, LOG_EVERY, Deadline, Stall, WaitingLog, back_off


def test_pauses_grow_up_to_half_a_second() -> None:
    pauses = list(islice(back_off(), 20))
    assert pauses[0] == 0.02
    assert all(later == min(sooner * 1.6, 0.5) for sooner, later in pairwise(pauses))
    assert pauses[-1] == 0.5


def test_one_of_those_who_have_waited_for_long_says_so() -> None:
    log = WaitingLog()
    assert not log.is_due(LOG_EVERY - 0.1)
    assert log.is_due(LOG_EVERY)
    assert not log.is_due(10 * LOG_EVERY)  # another has said it just now


def test_it_is_said_again_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratagem.runtime.wire.waiting.LOG_EVERY", 0.0)
    log = WaitingLog()
    assert [log.is_due(0.0) for _ in range(3)] == [True, True, True]


def test_a_deadline_runs_out() -> None:
    assert Deadline(math.inf).remaining() is None
    assert 0 < (Deadline(5).remaining() or 0) <= 5
    with pytest.raises(DeadlineExceeded):
        Deadline(0).remaining()
    assert Deadline(0).left() == 0
    assert Stall(3).remaining() == 3
    assert FOREVER.remaining() is None
