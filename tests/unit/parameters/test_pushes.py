"""Pushes that wait for others: answered by whoever makes their update, or when that is not to be, and once."""

import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from stratagem.errors import RolledBack, TaskLost
from stratagem.parameters.authority import Authority, Decision
from stratagem.parameters.pushes import Pushes
from stratagem.parameters.rules import APPLIED, Async, Push, Sync, UpdateRule
from stratagem.runtime.wire import LATER, Caller, Reply, Request

WORKERS = ("worker 0", "worker 1", "worker 2")


class Server:
    """A server that is alone: a real authority, and values that are the number of the update which made them."""

    def __init__(self, rule: UpdateRule) -> None:
        self.authority = Authority(rule, len(WORKERS), [0])
        for worker in range(len(WORKERS)):
            self.authority.join(worker, "first")
        self.is_alone = True
        self.staged: set[tuple[int, str, int]] = set()
        self.owned: list[int] = []
        self.readers = self.times_news = self.told = self.version = 0
        self.problem: Exception | None = None
        config, lead = cast(Any, SimpleNamespace(rule=rule, workers=WORKERS)), cast(Any, self)
        self.pushes = Pushes(config, lead, lead)

    # What the leader does.

    def news(self) -> None:
        self.times_news += 1

    def decide(self, epoch: str, push: Push, end: float, is_here: bool) -> tuple[Decision | None, list[str]]:
        if self.problem is not None:
            raise self.problem
        if is_here:
            self.authority.arrived(push, 0)
        missing = [WORKERS[worker] for worker in self.authority.missing()]
        return self.authority.decision(*push[:3]), missing

    def may_go_on(self, epoch: str, worker: int, end: float) -> list[int]:
        return self.authority.waits_for(worker)

    def wake(self) -> None:
        self.told += 1

    def update(self, epoch: str, step: int) -> Decision | None:
        return self.authority.decision_of_step(step)

    # What the store does.

    def stage(self, push: Push, *arrays: object) -> None:
        self.staged.add(push[:3])

    def has(self, push: Push) -> bool:
        return push[:3] in self.staged

    def own(self, push: Push) -> None:
        self.owned.append(push.worker)

    def left_by_earlier_starts(self, push: Push) -> list[Push]:
        return []  # each has one start here

    def settle(self, push: Push, decision: Decision) -> None:
        if decision.kind == APPLIED:
            self.apply(decision)

    def apply(self, decision: Decision) -> None:
        self.staged -= {each[:3] for each in decision.pushes}
        self.version = decision.step

    def read(self, at_least: int, is_far: bool) -> tuple[int, list[Any], Any]:
        assert self.version >= at_least, "this would wait for an update that nobody makes"
        self.readers += 1
        return at_least, [np.full(2, at_least)], self._release

    def _release(self) -> None:
        self.readers -= 1


class Worker:
    """One that pushes, and hears what comes of it."""

    def __init__(self, server: Server, number: int, is_near: bool = True) -> None:
        self._server = server
        self._number = number
        self._caller = Caller(WORKERS[number], "here", 1 if is_near else None)
        self.heard: list[Reply | Exception] = []
        self.is_gone = False

    def push(self, base: int = 0, again: bool = False, timeout: float = 20.0) -> Reply:
        fields = {"epoch": "one", "again": again, "metrics": {"loss": float(self._number)}}
        request = Request("push", fields, [], True, self._caller, timeout, respond=self._respond)
        push = Push(self._number, "first", base + 1, base, 1)
        return self._server.pushes.take(request, cast(Any, self._server), push)

    def _respond(self, reply: Reply | Exception) -> bool:
        self.heard.append(reply)
        if isinstance(reply, Reply) and reply.after is not None:
            reply.after()
        if self.is_gone:
            raise TaskLost("gone")
        return True

    @property
    def told(self) -> dict[str, Any]:
        (reply,) = self.heard
        assert isinstance(reply, Reply)
        return reply.fields


@pytest.fixture
def server() -> Server:
    return Server(Sync())


@pytest.fixture
def workers(server: Server) -> list[Worker]:
    return [Worker(server, number) for number in range(len(WORKERS))]


def test_the_last_push_of_an_update_answers_the_others(server: Server, workers: list[Worker]) -> None:
    for base in range(3):
        assert [worker.push(base) is LATER for worker in workers[:2]] == [True, True]
        last = workers[2].push(base)
        assert last.fields["update"] == base + 1
        for worker in workers[:2]:
            assert worker.told == {**last.fields, "staleness": 0}
            assert worker.told["metrics"] == {"loss": 1.0}
            worker.heard.clear()
        assert server.readers == 1, "the values may not change before the last answer is sent"
        assert last.after is not None
        last.after()
        assert server.readers == 0
    assert server.times_news == 0, "nobody is left who would have to be looked after"


def test_one_who_has_gone_meanwhile_does_not_keep_the_others_from_their_answers(
    server: Server, workers: list[Worker]
) -> None:
    workers[0].is_gone = True
    for worker in workers[:2]:
        worker.push()
    assert workers[2].push().fields["update"] == 1
    assert workers[1].told["update"] == 1


def test_those_who_wait_are_looked_after_when_a_worker_leaves(server: Server, workers: list[Worker]) -> None:
    for worker in workers[:2]:
        worker.push()
    server.pushes.look()
    assert workers[0].heard == workers[1].heard == []
    server.authority.leave(2, "finished")
    server.pushes.look()
    assert [worker.told["update"] for worker in workers[:2]] == [1, 1]
    assert server.readers == 0
    server.pushes.look()
    assert [len(worker.heard) for worker in workers[:2]] == [1, 1]


def test_one_who_has_waited_for_long_hears_for_whom_and_may_ask_again(
    server: Server, workers: list[Worker]
) -> None:
    assert workers[0].push(timeout=0.1) is workers[1].push() is LATER
    end = time.monotonic() + 20
    while not workers[0].heard:
        assert time.monotonic() < end, "it was never told anything"
        server.pushes.look()
    assert workers[0].told == {"state": "pending", "waiting": ["worker 2"]}
    assert server.owned == [0], "what it pushed is in its memory, which it may use again"
    assert workers[1].heard == []
    workers[0].heard.clear()
    assert workers[0].push(again=True) is LATER
    assert workers[2].push().fields["update"] == 1
    assert workers[0].told["update"] == workers[1].told["update"] == 1


def test_one_who_asks_for_a_push_that_is_not_here_is_to_send_it(workers: list[Worker]) -> None:
    assert workers[0].push(again=True).fields == {"state": "send"}


@pytest.mark.parametrize("problem", [RolledBack("to step 3"), RuntimeError("a bug")])
def test_all_who_wait_hear_what_went_wrong(server: Server, workers: list[Worker], problem: Exception) -> None:
    for worker in workers[:2]:
        worker.push()
    server.problem = problem
    server.pushes.look()
    for worker in workers[:2]:
        if isinstance(problem, RolledBack):
            assert worker.told == {"state": "rolled back", "why": "to step 3"}
        else:
            assert worker.heard == [problem]
    with pytest.raises(type(problem)):
        workers[2].push()
    server.problem = None
    server.pushes.look()
    assert [len(worker.heard) for worker in workers] == [1, 1, 0]


def test_who_asks_again_over_another_connection_is_answered_there(
    server: Server, workers: list[Worker]
) -> None:
    same = Worker(server, 0)
    workers[0].push()
    assert same.push(again=True) is LATER
    workers[1].push()
    workers[2].push()
    assert same.told["update"] == 1
    assert workers[0].heard == []


def test_pushes_that_are_only_counted_are_answered_while_their_update_is_waited_for() -> None:
    server = Server(Sync(replicas_to_aggregate=4, total_num_replicas=3))
    workers = [Worker(server, number) for number in range(3)]
    kinds = [worker.push().fields.get("kind") for worker in workers]
    assert kinds == ["counted"] * 3
    assert [worker.heard for worker in workers] == [[], [], []]


def test_the_update_that_one_who_is_too_late_hears_of_is_made_even_if_it_is_looked_after_first() -> None:
    server = Server(Sync(replicas_to_aggregate=2, total_num_replicas=3))
    workers = [Worker(server, number) for number in range(3)]
    server.authority.hold()
    assert [worker.push() is LATER for worker in workers] == [True] * 3
    # As it is when those who are in time have asked again.
    server.pushes._waiting = dict(reversed(server.pushes._waiting.items()))
    server.authority.release()
    server.pushes.look()
    assert [worker.told["kind"] for worker in workers] == ["applied", "applied", "dropped"]
    assert [worker.told["step"] for worker in workers] == [1, 1, 1]


def test_those_who_wait_hear_of_an_update_before_it_is_sent_to_one_who_is_far() -> None:
    server = Server(Async())
    answer = Worker(server, 0, is_near=False).push()
    assert answer.fields["update"] == 1
    assert server.told == 1
    assert Worker(server, 1).push().fields["update"] == 2
    assert server.told == 1, "one who is near is answered at once"


def test_from_afar_and_without_waiting_for_others_the_handler_answers(server: Server) -> None:
    far = Worker(server, 0, is_near=False)
    assert far.push(timeout=-1.0).fields["state"] == "pending"
    alone = Worker(Server(Async()), 1)
    assert alone.push().fields["update"] == 1
    assert far.heard == alone.heard == []
