"""Who decides which pushes make which update: event by event, without a server."""

import itertools

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as some

from stratagem.errors import StrategyError
from stratagem.parameters.authority import Authority, Decision
from stratagem.parameters.rules import (
    APPLIED,
    COUNTED,
    DROPPED,
    Async,
    BoundedStaleness,
    Push,
    Sync,
    UpdateRule,
)


class Job:
    """An authority and its workers, of which each pushes in turn when told."""

    def __init__(self, rule: UpdateRule, workers: int, servers: int = 1) -> None:
        self.authority = Authority(rule, workers, range(servers))
        self.servers = servers
        self.sequences = [0] * workers
        self.starts = [0] * workers

    def join(self, *workers: int) -> None:
        for worker in workers:
            self.authority.join(worker, self.incarnation(worker))

    def incarnation(self, worker: int) -> str:
        return f"start {self.starts[worker]}"

    def restart(self, worker: int) -> None:
        self.starts[worker] += 1
        self.sequences[worker] = 0
        self.join(worker)

    def push(self, worker: int, base: int | None = None, rows: int = 1, servers: int | None = None) -> Push:
        self.sequences[worker] += 1
        base = self.authority.step if base is None else base
        push = Push(worker, self.incarnation(worker), self.sequences[worker], base, rows)
        for server in range(self.servers if servers is None else servers):
            self.authority.arrived(push, server)
        return push

    def decision(self, push: Push) -> Decision | None:
        return self.authority.decision(push.worker, push.incarnation, push.sequence)


def test_async_applies_each_push_on_arrival_and_records_its_staleness() -> None:
    job = Job(Async(), 2)
    job.join(0, 1)
    first, second = job.push(0, base=0), job.push(1, base=0)
    assert job.decision(first) == Decision(APPLIED, 1, (first,))
    assert job.decision(second) == Decision(APPLIED, 2, (second,))
    assert job.authority.staleness == {0: 1, 1: 1}


def test_a_push_counts_only_when_every_server_has_its_part() -> None:
    job = Job(Async(), 1, servers=3)
    job.join(0)
    push = job.push(0, servers=2)
    assert job.decision(push) is None
    assert job.authority.step == 0
    job.authority.arrived(push, 2)
    assert job.decision(push) == Decision(APPLIED, 1, (push,))


def test_a_push_that_comes_twice_is_applied_once() -> None:
    job = Job(Async(), 1)
    job.join(0)
    push = job.push(0)
    job.authority.arrived(push, 0)
    assert job.authority.step == 1


def test_a_push_told_of_again_while_it_waits_is_no_second_one() -> None:
    job = Job(Sync(), 2, servers=2)
    job.join(0, 1)
    push = job.push(0)
    for server in range(2):
        job.authority.arrived(push, server)
    assert job.decision(push) is None
    job.push(1)
    assert job.decision(push).kind == APPLIED  # type: ignore[union-attr]


def test_what_a_dead_worker_left_half_way_is_forgotten_when_it_comes_again() -> None:
    job = Job(Async(), 1, servers=2)
    job.join(0)
    half = job.push(0, servers=1)
    job.restart(0)
    job.authority.arrived(half, 1)
    assert job.authority.step == 0
    again = job.push(0)
    assert job.decision(again) == Decision(APPLIED, 1, (again,))


def test_sync_averages_one_push_of_every_worker_in_their_order() -> None:
    job = Job(Sync(), 3)
    job.join(0, 1, 2)
    pushes = [job.push(worker) for worker in (2, 0)]
    assert [job.decision(push) for push in pushes] == [None, None]
    assert job.authority.missing() == [1]
    last = job.push(1)
    decided = job.decision(last)
    assert decided is not None
    assert decided == job.decision(pushes[0])
    assert [push.worker for push in decided.pushes] == [0, 1, 2]


def test_a_backup_worker_is_not_waited_for_and_its_stale_gradient_is_dropped_and_counted() -> None:
    job = Job(Sync(replicas_to_aggregate=2, total_num_replicas=3), 3)
    job.join(0, 1, 2)
    job.push(0), job.push(1)
    assert job.authority.step == 1
    late = job.push(2, base=0)
    decided = job.decision(late)
    assert decided is not None
    assert decided.kind == DROPPED
    assert "computed on step 0, and the step is 1" in decided.why
    assert job.authority.dropped == {2: 1}
    fresh = job.push(2)
    job.push(1)
    assert fresh in job.decision(fresh).pushes  # type: ignore[union-attr]


def test_with_more_to_aggregate_than_workers_each_pushes_several_times() -> None:
    job = Job(Sync(replicas_to_aggregate=4), 2)
    job.join(0, 1)
    first = job.push(0)
    assert job.decision(first) == Decision(COUNTED, 0)
    second = job.push(0)
    assert job.decision(second) is None
    third, fourth = job.push(1), job.push(1)
    assert job.decision(fourth) == Decision(APPLIED, 1, (first, second, third, fourth))


def test_with_more_to_aggregate_than_workers_those_who_stay_bring_more_when_others_leave() -> None:
    job = Job(Sync(replicas_to_aggregate=3), 2)
    job.join(0, 1)
    pushes = [job.push(1), job.push(1)]
    assert job.decision(pushes[1]) is None
    job.authority.leave(0, "finished")
    assert job.decision(pushes[1]) == Decision(COUNTED, 0)
    third = job.push(1)
    assert job.decision(third) == Decision(APPLIED, 1, (*pushes, third))
    last = job.push(1)
    assert job.decision(last) == Decision(COUNTED, 1)
    job.authority.leave(1, "finished")
    assert job.authority.decision_of_step(2) == Decision(APPLIED, 2, (last,))


def test_pushes_of_no_rows_take_part_but_make_no_update_alone() -> None:
    job = Job(Sync(), 2)
    job.join(0, 1)
    empty, full = job.push(0, rows=0), job.push(1, rows=3)
    assert job.decision(full) == Decision(APPLIED, 1, (empty, full))
    both = [job.push(worker, rows=0) for worker in range(2)]
    assert [job.decision(push).kind for push in both] == [DROPPED, DROPPED]  # type: ignore[union-attr]
    assert job.authority.step == 1


@pytest.mark.parametrize("rule", [Async(), BoundedStaleness(1)])
def test_a_push_of_no_rows_is_dropped_where_each_is_an_update(rule: UpdateRule) -> None:
    job = Job(rule, 2)
    job.join(0, 1)
    empty, full = job.push(0, rows=0), job.push(1)
    assert job.decision(empty) == Decision(DROPPED, 0, why="it had no example")
    assert job.decision(full) == Decision(APPLIED, 1, (full,))


def test_workers_that_finish_early_are_not_waited_for() -> None:
    job = Job(Sync(), 2)
    job.join(0, 1)
    push = job.push(0)
    assert job.decision(push) is None
    job.authority.leave(1, "finished")
    assert job.decision(push) == Decision(APPLIED, 1, (push,))


def test_sync_waits_for_a_worker_that_has_not_come_yet() -> None:
    job = Job(Sync(), 2)
    job.join(0)
    push = job.push(0)
    assert job.decision(push) is None
    assert job.authority.missing() == [1]
    job.join(1)
    job.push(1)
    assert job.authority.step == 1


def test_a_worker_started_again_cannot_fill_an_update_alone() -> None:
    job = Job(Sync(), 2)
    job.join(0, 1)
    job.push(1)
    job.restart(1)
    again = job.push(1)
    assert job.decision(again).kind == DROPPED  # type: ignore[union-attr]
    assert job.authority.step == 0
    own = job.push(0)
    assert [push.worker for push in job.decision(own).pushes] == [0, 1]  # type: ignore[union-attr]


def test_what_a_worker_pushed_before_it_was_started_again_counts_and_is_not_said_to_be_dropped_before() -> (
    None
):
    job = Job(Sync(), 2)
    job.join(0, 1)
    old = job.push(0)
    job.restart(0)
    assert job.decision(old) is None, "the servers must keep it for its update"
    other = job.push(1)
    decision = job.decision(other)
    assert decision is not None
    assert decision.pushes == (old, other)
    after = job.decision(old)
    assert after is not None
    assert after.kind == DROPPED


def test_a_worker_too_far_ahead_waits_for_the_slowest() -> None:
    job = Job(BoundedStaleness(2), 2)
    job.join(0, 1)
    for _ in range(2):
        job.push(0)
        assert job.authority.waits_for(0) == []
    job.push(0)
    assert job.authority.waits_for(0) == [1]
    job.push(1)
    assert job.authority.waits_for(0) == []


def test_a_late_worker_starts_level_with_the_slowest() -> None:
    job = Job(BoundedStaleness(1), 3)
    job.join(0, 1)
    for _ in range(5):
        job.push(0), job.push(1)
    job.join(2)
    assert job.authority.waits_for(0) == []
    job.push(0)
    assert job.authority.waits_for(0) == []
    job.push(0)
    assert job.authority.waits_for(0) == [1, 2]
    job.authority.leave(2, "finished")
    assert job.authority.waits_for(0) == [1]


def test_a_worker_between_two_passes_holds_nobody_back() -> None:
    job = Job(BoundedStaleness(0), 2)
    job.join(0, 1)
    job.push(0)
    assert job.authority.waits_for(0) == [1]
    job.authority.pause(1)
    assert job.authority.waits_for(0) == []
    for _ in range(3):
        job.push(0)
    job.push(1)
    assert job.authority.waits_for(0) == []  # level again, however far it was ahead


def test_while_held_nothing_is_decided_and_nothing_is_lost() -> None:
    job = Job(Async(), 2)
    job.join(0, 1)
    job.push(0)
    assert job.authority.hold() == 1
    pushes = [job.push(1), job.push(0)]
    assert job.authority.step == 1
    job.authority.release()
    assert [job.decision(push).step for push in pushes] == [2, 3]  # type: ignore[union-attr]


def test_while_held_nothing_is_decided_by_a_worker_that_leaves_either() -> None:
    job = Job(Sync(), 2)
    job.join(0, 1)
    push = job.push(0)
    job.authority.hold()
    job.authority.leave(1, "finished")
    assert job.decision(push) is None
    job.authority.release()
    assert job.decision(push) == Decision(APPLIED, 1, (push,))


def test_a_rewind_takes_back_what_came_after_and_numbers_go_on() -> None:
    job = Job(Async(), 2)
    job.join(0, 1)
    job.push(0)
    applied, step = job.authority.applied, job.authority.step
    lost = job.push(1)
    job.authority.rewind(step, applied)
    assert job.authority.step == 1
    assert job.decision(lost) is None
    following = job.push(1)
    assert job.decision(following) == Decision(APPLIED, 2, (following,))


def test_the_next_update_after_a_wish_for_a_snapshot_is_followed_by_one() -> None:
    job = Job(Async(), 1)
    job.join(0)
    job.authority.snapshot_wanted = True
    assert [job.decision(job.push(0)).snapshot for _ in range(2)] == [True, False]  # type: ignore[union-attr]
    assert job.authority.snapshots == [(1, {0: ("start 0", 1)})]


def test_a_decision_travels_in_plain_values() -> None:
    decision = Decision(APPLIED, 3, (Push(0, "a", 1, 2, 10), Push(1, "b", 1, 2, 9)), snapshot=True)
    assert Decision.from_fields(*msgpack.unpackb(msgpack.packb(decision))) == decision


def test_an_unknown_worker_is_refused() -> None:
    with pytest.raises(StrategyError, match="no worker 2: the job has 2"):
        Authority(Async(), 2, [0]).join(2, "a")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Sync(replicas_to_aggregate=0), "at least 1"),
        (lambda: BoundedStaleness(-1), "at least 0"),
        (lambda: Async(overlap=1), "True or False"),  # type: ignore[arg-type]
        (lambda: Sync(total_num_replicas=3).for_workers(2), "the cluster has 2 workers"),
    ],
)
def test_wrong_rules_are_refused(wrong: object, words: str) -> None:
    with pytest.raises(StrategyError, match=words):
        wrong()  # type: ignore[operator]


RULES = some.sampled_from([Async(), Sync(), Sync(1), Sync(2), Sync(5), BoundedStaleness(1)])


@given(
    rule=RULES,
    events=some.lists(
        some.tuples(
            some.sampled_from(["push", "half", "restart", "pause", "hold", "release", "again"]),
            some.integers(0, 2),
        ),
        max_size=60,
    ),
)
def test_whatever_happens_each_push_is_applied_at_most_once_and_steps_have_no_gap(
    rule: UpdateRule, events: list[tuple[str, int]]
) -> None:
    job = Job(rule, 3, servers=2)
    job.join(0, 1, 2)
    pushes: list[Push] = []
    seen: dict[int, tuple[Push, ...]] = {}
    dropped: set[Push] = set()

    def look() -> None:
        for push in pushes:
            decided = job.decision(push)
            if decided is not None and decided.kind == APPLIED:
                assert seen.setdefault(decided.step, decided.pushes) == decided.pushes
            if (
                decided is not None
                and decided.kind == DROPPED
                and push.incarnation == job.incarnation(push.worker)
            ):
                dropped.add(push)

    for event, worker in events:
        match event:
            case "push" | "half":
                pushes.append(job.push(worker, servers=2 if event == "push" else 1))
            case "restart":
                job.restart(worker)
            case "pause":
                job.authority.pause(worker)
            case "hold":
                job.authority.hold()
            case "release":
                job.authority.release()
            case "again" if pushes:
                for server in range(2):
                    job.authority.arrived(pushes[-1], server)
        look()
    applied = list(itertools.chain.from_iterable(seen.values()))
    assert len(applied) == len(set(applied))
    assert dropped.isdisjoint(applied)
    assert sum(job.authority.staleness.values()) >= len(applied)
    assert set(seen) <= set(range(1, job.authority.step + 1))
