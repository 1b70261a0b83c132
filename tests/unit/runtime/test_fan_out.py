"""Calls at once: their results in order, and an error only when all of them are over."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stratagem.runtime.fan_out import fan_out, results_of

SECONDS = 10.0


def test_all_run_at_once_and_their_results_are_in_order() -> None:
    everybody = threading.Barrier(4)

    def act(number: int) -> int:
        everybody.wait(SECONDS)
        return number * number

    assert fan_out(act, range(4)) == [0, 1, 4, 9]
    with ThreadPoolExecutor(3) as threads:
        assert fan_out(act, range(4), threads.submit) == [0, 1, 4, 9]


def test_the_first_runs_here_and_one_alone_needs_no_thread() -> None:
    def act(_: int) -> int:
        return threading.get_ident()

    here = threading.get_ident()
    first, other = fan_out(act, range(2))
    assert first == here
    assert other != here
    assert fan_out(act, range(1)) == [here]
    assert fan_out(act, []) == []


@pytest.mark.parametrize("failing", [{0, 2}, {1, 2}, {2}])
def test_the_first_error_is_raised_when_all_are_over(failing: set[int]) -> None:
    over = []
    has_failed = threading.Event()

    def act(number: int) -> None:
        if number in failing:
            has_failed.set()
            raise ValueError(f"number {number}")
        assert has_failed.wait(SECONDS)
        over.append(number)

    with pytest.raises(ValueError, match=f"number {min(failing)}"):
        fan_out(act, range(4))
    assert sorted(over) == sorted(set(range(4)) - failing)


def test_no_more_threads_than_asked_for() -> None:
    names = set()

    def act(_: int) -> None:
        names.add(threading.get_ident())

    fan_out(act, range(20), most=2)
    assert len(names) <= 3


def test_waits_that_began_before() -> None:
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(pow, number, 2) for number in range(5)]
        assert results_of(each.result for each in running) == [0, 1, 4, 9, 16]
