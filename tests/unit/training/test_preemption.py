"""A process that is asked to end among others that train in step with it: who stops, who is told, who leaves."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

import pytest

from drills.processes import until
from stratagem.errors import WorkerLost
from stratagem.training.preemption import preemption
from stratagem.waist.home import PreemptionNotice


class Others(PreemptionNotice):
    """The others, as a test has them behave; counts how often they are told."""

    def __init__(self, is_asked: bool = False, have_left: Callable[[], bool] = lambda: False) -> None:
        self.is_asked = is_asked
        self.times_told = 0
        self._have_left = have_left

    @property
    def has_come(self) -> bool:
        return self.is_asked

    def send(self) -> None:
        self.times_told += 1

    def has_chief_left(self) -> bool:
        return self._have_left()


def chief() -> bool:
    return True


def worker() -> bool:
    return False


def ask() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_the_chief_stops_when_another_was_asked() -> None:
    others, finished = Others(), list[str]()
    with (
        pytest.raises(SystemExit) as ended,
        preemption(chief, lambda: finished.append("all"), lambda: others) as preempted,
    ):
        assert not preempted
        others.is_asked = True
        assert preempted
    assert (ended.value.code, finished) == (143, ["all"])
    assert others.times_told == 0, "they know"


def test_what_is_being_written_is_finished_though_a_second_signal_comes() -> None:
    def refuse(number: int, frame: FrameType | None) -> None:
        pytest.fail("the signal came to whoever listened before")

    finished = list[str]()

    def finish() -> None:
        ask()
        finished.append("all")

    before = signal.signal(signal.SIGTERM, refuse)
    try:
        with pytest.raises(SystemExit) as ended, preemption(chief, finish):
            ask()
        assert signal.getsignal(signal.SIGTERM) is refuse
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (ended.value.code, finished) == (143, ["all"])


def test_a_worker_tells_the_others_and_goes_on_until_they_have_gone() -> None:
    others = Others()
    with pytest.raises(SystemExit) as ended, preemption(worker, list, lambda: others) as preempted:
        ask()
        until("the others to be told", lambda: others.times_told == 1)
        assert not preempted
        raise WorkerLost("the chief has gone")
    assert ended.value.code == 143
    assert others.times_told == 1


def test_a_chief_that_leaves_at_once_has_told_the_others() -> None:
    others = Others()
    with pytest.raises(SystemExit), preemption(chief, list, lambda: others) as preempted:
        ask()
        assert preempted
    assert others.times_told == 1


def test_a_worker_that_was_asked_does_not_wait_for_a_chief_that_has_left() -> None:
    others = Others(have_left=lambda: True)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, preemption(worker, list, lambda: others):
        ask()
        threading.Event().wait(60)
        pytest.fail("it waited for nobody")
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_worker_that_got_no_signal_itself_waits_for_a_chief_that_may_be_started_again() -> None:
    others, looks = Others(is_asked=True, have_left=lambda: True), list[str]()

    def notice() -> Others:
        looks.append(threading.current_thread().name)
        return others

    with preemption(worker, list, notice):
        until("it to have looked around", lambda: looks.count("stratagem-preemption") > 4)


def test_a_worker_that_trained_to_the_end_is_done() -> None:
    with preemption(worker, list, Others) as preempted:
        ask()
        assert preempted.was_asked
        assert not preempted


def test_a_loss_that_nobody_asked_for_is_raised() -> None:
    with pytest.raises(WorkerLost), preemption(worker, list, Others):
        raise WorkerLost("died")
