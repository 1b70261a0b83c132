"""Who runs which closure, and what becomes of the others when one fails or a worker is lost."""

import random

import pytest

from stratagem.classic.coordinator.dispatch import MOST_LOSSES, Cancel, Dispatch, Fail, Run
from stratagem.errors import DataError, TaskLost

A, B = "/job:worker/task:0", "/job:worker/task:1"


def with_workers(*workers: str, limit: int = 10) -> Dispatch:
    dispatch = Dispatch(limit)
    for worker in workers:
        assert dispatch.arrived(worker) == []
    return dispatch


def test_closures_go_to_who_has_been_idle_longest() -> None:
    dispatch = with_workers(A, B)
    assert dispatch.scheduled(0) == [Run(A, 0)]
    assert dispatch.scheduled(1) == [Run(B, 1)]
    assert dispatch.scheduled(2) == []
    assert dispatch.queued == 1
    assert dispatch.finished(B) == [Run(B, 2)]
    assert dispatch.finished(A) == []
    assert not dispatch.is_done
    assert dispatch.finished(B) == []
    assert dispatch.is_done
    assert dispatch.scheduled(3) == [Run(A, 3)]


def test_closures_wait_for_workers_that_come_later() -> None:
    dispatch = Dispatch(limit=2)
    assert dispatch.scheduled(0) == []
    assert not dispatch.is_full
    assert dispatch.scheduled(1) == []
    assert dispatch.is_full
    assert dispatch.workers == set()
    assert dispatch.arrived(B) == [Run(B, 0)]
    assert not dispatch.is_full
    assert dispatch.arrived(B) == [], "it is known already"
    assert dispatch.arrived(A) == [Run(A, 1)]
    assert dispatch.running == {A: 1, B: 0}


def test_a_lost_workers_closure_is_the_next_to_run() -> None:
    dispatch = with_workers(A, B)
    for closure in range(4):
        dispatch.scheduled(closure)
    assert dispatch.lost(A) == []
    assert dispatch.workers == {B}
    assert dispatch.finished(B) == [Run(B, 0)], "before those that were queued already"
    assert dispatch.arrived(A) == [Run(A, 2)], "a worker that has come back gets work again"
    assert dispatch.finished(B) == [Run(B, 3)]


def test_an_idle_worker_that_is_lost_gets_nothing() -> None:
    dispatch = with_workers(A, B)
    assert dispatch.lost(A) == []
    assert dispatch.scheduled(0) == [Run(B, 0)]
    assert dispatch.lost(A) == [], "it is known already"
    assert dispatch.scheduled(1) == []


def test_the_first_error_cancels_what_is_queued_and_is_taken_once() -> None:
    dispatch = with_workers(A, B)
    for closure in range(4):
        dispatch.scheduled(closure)
    first = DataError("the first")
    assert dispatch.failed(A, first) == [Cancel(2), Cancel(3)]
    assert dispatch.has_failed
    assert not dispatch.is_done, "what runs runs on"
    assert dispatch.failed(B, DataError("the second")) == []
    assert dispatch.is_done
    assert dispatch.take_error() is first
    assert dispatch.take_error() is None
    assert dispatch.scheduled(4) == [Run(A, 4)]


def test_what_was_scheduled_before_an_error_was_taken_no_longer_counts() -> None:
    dispatch = with_workers(A, B)
    for closure in range(2):
        dispatch.scheduled(closure)
    dispatch.failed(A, DataError("the first"))
    dispatch.take_error()
    assert dispatch.scheduled(2) == [Run(A, 2)]
    assert dispatch.scheduled(3) == []
    assert dispatch.failed(B, DataError("of the past")) == [Run(B, 3)]
    assert not dispatch.has_failed
    error = DataError("of now")
    assert dispatch.failed(A, error) == []
    assert dispatch.take_error() is error


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_closure_that_was_lost_after_an_error_is_not_put_back(is_taken: bool) -> None:
    dispatch = with_workers(A, B)
    dispatch.scheduled(0)
    dispatch.scheduled(1)
    dispatch.failed(A, DataError("the first"))
    if is_taken:
        dispatch.take_error()
    assert dispatch.lost(B) == [Cancel(1)]
    assert dispatch.is_done


def test_a_closure_that_costs_worker_after_worker_is_taken_for_the_cause() -> None:
    dispatch = with_workers(A)
    dispatch.scheduled(0)
    dispatch.scheduled(1)
    for _ in range(MOST_LOSSES - 1):
        assert dispatch.lost(A) == []
        assert dispatch.arrived(A) == [Run(A, 0)]
    failed, *cancelled = dispatch.lost(A)
    assert isinstance(failed, Fail)
    assert failed.closure == 0
    assert cancelled == [Cancel(1)]
    error = dispatch.take_error()
    assert isinstance(error, TaskLost)
    assert "taken for the cause" in str(error)
    assert dispatch.is_done


def test_closing_cancels_what_is_queued() -> None:
    dispatch = with_workers(A)
    dispatch.scheduled(0)
    dispatch.scheduled(1)
    assert dispatch.closed() == [Cancel(1)]
    assert dispatch.running == {A: 0}
    assert dispatch.lost(A) == [Cancel(0)], "nobody will run it again"
    assert dispatch.is_done


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_lost_every_closure_ends_exactly_once(seed: int) -> None:
    chance = random.Random(seed)
    dispatch, missing, under_way, ended = Dispatch(1000), {A, B, "C"}, dict[str, int](), list[int]()
    scheduled = 0

    def note(orders: list[object]) -> None:
        for order in orders:
            if isinstance(order, Run):
                assert order.worker not in under_way
                assert order.worker not in missing
                under_way[order.worker] = order.closure
            else:
                assert isinstance(order, Fail)
                ended.append(order.closure)

    for _ in range(400):
        event = chance.choice(["schedule", "arrive", "finish", "finish", "lose"])
        if event == "schedule":
            note([*dispatch.scheduled(scheduled)])
            scheduled += 1
        elif event == "arrive" and missing:
            worker = chance.choice(sorted(missing))
            missing.discard(worker)
            note([*dispatch.arrived(worker)])
        elif event == "finish" and under_way:
            worker = chance.choice(sorted(under_way))
            ended.append(under_way.pop(worker))
            note([*dispatch.finished(worker)])
        elif event == "lose" and len(missing) < 3 and chance.random() < 0.3:
            worker = chance.choice(sorted({A, B, "C"} - missing))
            missing.add(worker)
            under_way.pop(worker, None)
            note([*dispatch.lost(worker)])
    for worker in sorted(missing):
        missing.discard(worker)
        note([*dispatch.arrived(worker)])
    while under_way:
        worker, closure = under_way.popitem()
        ended.append(closure)
        note([*dispatch.finished(worker)])
    assert dispatch.is_done
    assert sorted(ended) == list(range(scheduled))
