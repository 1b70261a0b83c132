"""Who runs which closure, and what becomes of the others when one fails or a worker is lost."""

import random

import pytest

from stratagem.classic.coordinator.dispatch import (
    MOST_LOSSES,
    CancelClosure,
    Dispatch,
    FailClosure,
    RunClosure,
)
from stratagem.errors import DataError, TaskLost

A, B = "/job:worker/task:0", "/job:worker/task:1"


def with_workers(*workers: str, limit: int = 10) -> Dispatch:
    dispatch = Dispatch(limit)
    for worker in workers:
        assert dispatch.add_worker(worker) == []
    return dispatch


def test_closures_go_to_who_has_been_idle_longest() -> None:
    dispatch = with_workers(A, B)
    assert dispatch.schedule(0) == [RunClosure(A, 0)]
    assert dispatch.schedule(1) == [RunClosure(B, 1)]
    assert dispatch.schedule(2) == []
    assert dispatch.queue_length == 1
    assert dispatch.finish(B) == [RunClosure(B, 2)]
    assert dispatch.finish(A) == []
    assert not dispatch.is_done
    assert dispatch.finish(B) == []
    assert dispatch.is_done
    assert dispatch.schedule(3) == [RunClosure(A, 3)]


def test_closures_wait_for_workers_that_come_later() -> None:
    dispatch = Dispatch(limit=2)
    assert dispatch.schedule(0) == []
    assert not dispatch.is_full
    assert dispatch.schedule(1) == []
    assert dispatch.is_full
    assert dispatch.workers == set()
    assert dispatch.add_worker(B) == [RunClosure(B, 0)]
    assert not dispatch.is_full
    assert dispatch.add_worker(B) == [], "it is known already"
    assert dispatch.add_worker(A) == [RunClosure(A, 1)]
    assert dispatch.running == {A: 1, B: 0}


def test_a_lost_workers_closure_is_the_next_to_run() -> None:
    dispatch = with_workers(A, B)
    for closure in range(4):
        dispatch.schedule(closure)
    assert dispatch.remove_worker(A) == []
    assert dispatch.workers == {B}
    assert dispatch.finish(B) == [RunClosure(B, 0)], "before those that were queued already"
    assert dispatch.add_worker(A) == [RunClosure(A, 2)], "a worker that has come back gets work again"
    assert dispatch.finish(B) == [RunClosure(B, 3)]


def test_an_idle_worker_that_is_lost_gets_nothing() -> None:
    dispatch = with_workers(A, B)
    assert dispatch.remove_worker(A) == []
    assert dispatch.schedule(0) == [RunClosure(B, 0)]
    assert dispatch.remove_worker(A) == [], "it is known already"
    assert dispatch.schedule(1) == []


def test_the_first_error_cancels_what_is_queued_and_is_taken_once() -> None:
    dispatch = with_workers(A, B)
    for closure in range(4):
        dispatch.schedule(closure)
    first = DataError("the first")
    assert dispatch.fail(A, first) == [CancelClosure(2), CancelClosure(3)]
    assert dispatch.has_failed
    assert not dispatch.is_done, "what runs runs on"
    assert dispatch.fail(B, DataError("the second")) == []
    assert dispatch.is_done
    assert dispatch.take_error() is first
    assert dispatch.take_error() is None
    assert dispatch.schedule(4) == [RunClosure(A, 4)]


def test_what_was_scheduled_before_an_error_was_taken_no_longer_counts() -> None:
    dispatch = with_workers(A, B)
    for closure in range(2):
        dispatch.schedule(closure)
    dispatch.fail(A, DataError("the first"))
    dispatch.take_error()
    assert dispatch.schedule(2) == [RunClosure(A, 2)]
    assert dispatch.schedule(3) == []
    assert dispatch.fail(B, DataError("of the past")) == [RunClosure(B, 3)]
    assert not dispatch.has_failed
    error = DataError("of now")
    assert dispatch.fail(A, error) == []
    assert dispatch.take_error() is error


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_closure_that_was_lost_after_an_error_is_not_put_back(is_taken: bool) -> None:
    dispatch = with_workers(A, B)
    dispatch.schedule(0)
    dispatch.schedule(1)
    dispatch.fail(A, DataError("the first"))
    if is_taken:
        dispatch.take_error()
    assert dispatch.remove_worker(B) == [CancelClosure(1)]
    assert dispatch.is_done


def test_a_closure_that_costs_worker_after_worker_is_taken_for_the_cause() -> None:
    dispatch = with_workers(A)
    dispatch.schedule(0)
    dispatch.schedule(1)
    for _ in range(MOST_LOSSES - 1):
        assert dispatch.remove_worker(A) == []
        assert dispatch.add_worker(A) == [RunClosure(A, 0)]
    failed, *cancelled = dispatch.remove_worker(A)
    assert isinstance(failed, FailClosure)
    assert failed.closure == 0
    assert cancelled == [CancelClosure(1)]
    error = dispatch.take_error()
    assert isinstance(error, TaskLost)
    assert "taken for the cause" in str(error)
    assert dispatch.is_done


def test_closing_cancels_what_is_queued() -> None:
    dispatch = with_workers(A)
    dispatch.schedule(0)
    dispatch.schedule(1)
    assert dispatch.close() == [CancelClosure(1)]
    assert dispatch.running == {A: 0}
    assert dispatch.remove_worker(A) == [CancelClosure(0)], "nobody will run it again"
    assert dispatch.is_done


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_lost_every_closure_ends_exactly_once(seed: int) -> None:
    chance = random.Random(seed)
    dispatch, missing, under_way, ended = Dispatch(1000), {A, B, "C"}, dict[str, int](), list[int]()
    scheduled = 0

    def note(orders: list[object]) -> None:
        for order in orders:
            if isinstance(order, RunClosure):
                assert order.worker not in under_way
                assert order.worker not in missing
                under_way[order.worker] = order.closure
            else:
                assert isinstance(order, FailClosure)
                ended.append(order.closure)

    for _ in range(400):
        event = chance.choice(["schedule", "arrive", "finish", "finish", "lose"])
        if event == "schedule":
            note([*dispatch.schedule(scheduled)])
            scheduled += 1
        elif event == "arrive" and missing:
            worker = chance.choice(sorted(missing))
            missing.discard(worker)
            note([*dispatch.add_worker(worker)])
        elif event == "finish" and under_way:
            worker = chance.choice(sorted(under_way))
            ended.append(under_way.pop(worker))
            note([*dispatch.finish(worker)])
        elif event == "lose" and len(missing) < 3 and chance.random() < 0.3:
            worker = chance.choice(sorted({A, B, "C"} - missing))
            missing.add(worker)
            under_way.pop(worker, None)
            note([*dispatch.remove_worker(worker)])
    for worker in sorted(missing):
        missing.discard(worker)
        note([*dispatch.add_worker(worker)])
    while under_way:
        worker, closure = under_way.popitem()
        ended.append(closure)
        note([*dispatch.finish(worker)])
    assert dispatch.is_done
    assert sorted(ended) == list(range(scheduled))
