"""The launcher's decisions, without a process: events in, instructions out."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.tools.launch import policy as rules
from stratagem.tools.launch.policy import (
    Event,
    Exited,
    Finish,
    Instruction,
    Kill,
    Passed,
    Policy,
    Say,
    Send,
    Signalled,
    Start,
)
from stratagem.tools.launch.tasks import TaskName

PS = TaskName("ps", 0)
W0, W1 = TaskName("worker", 0), TaskName("worker", 1)
EVALUATOR = TaskName("evaluator", 0)


def acts(instructions: list[Instruction]) -> list[Instruction]:
    """All but what is only said."""
    return [instruction for instruction in instructions if not isinstance(instruction, Say)]


def begun(*tasks: TaskName, **options: object) -> Policy:
    policy = Policy(tasks, frozenset(task for task in tasks if task.job == "ps"), **options)  # type: ignore[arg-type]
    assert policy.begin(0.0) == [Start(task, 0) for task in tasks]
    return policy


def test_done_when_all_end_well() -> None:
    policy = begun(W0, W1)
    assert policy.handle(Exited(W0, 0), 1.0) == []
    assert policy.handle(Exited(W1, 0), 2.0) == [Finish(0)]


def test_first_failure_ends_all_and_kills_what_does_not_listen() -> None:
    policy = begun(PS, W0, W1)
    instructions = policy.handle(Exited(W0, 3), 10.0)
    assert acts(instructions) == [Send(PS, signal.SIGTERM), Send(W1, signal.SIGTERM)]
    assert instructions[0] == Say("worker:0 failed with exit code 3: stopping the job")
    assert policy.handle(Exited(W1, -15), 10.1) == []
    assert policy.wake_at == 10.0 + rules.STOP_SECONDS
    assert policy.handle(Passed(), policy.wake_at) == [Kill(PS)]
    assert policy.wake_at is None
    assert policy.handle(Exited(PS, -9), 12.0) == [Finish(1)]


def test_servers_are_asked_to_end_when_all_others_are_done_and_it_is_no_failure() -> None:
    policy = begun(PS, W0)
    assert policy.handle(Exited(W0, 0), 1.0) == [Send(PS, signal.SIGTERM)]
    assert policy.wake_at == 1.0 + rules.SERVER_SECONDS
    assert policy.handle(Passed(), policy.wake_at) == [Kill(PS)]
    assert policy.handle(Exited(PS, -9), 12.0) == [Finish(0)]


def test_server_that_has_ended_by_itself() -> None:
    policy = begun(PS, W0)
    assert policy.handle(Exited(PS, 0), 0.9) == []
    assert policy.handle(Exited(W0, 0), 1.0) == [Finish(0)]


def test_server_that_waits_for_its_restart_when_all_others_are_done_is_not_started_again() -> None:
    policy = begun(PS, W0, max_restarts=3, rule="task")
    assert acts(policy.handle(Exited(PS, 1), 0.9)) == []
    assert policy.handle(Exited(W0, 0), 1.0) == [Finish(0)]


def test_who_is_preempted_may_save_with_the_servers_before_these_end() -> None:
    policy = begun(PS, W0, W1)
    assert acts(policy.handle(Signalled(signal.SIGTERM), 1.0)) == [
        Send(W0, signal.SIGTERM),
        Send(W1, signal.SIGTERM),
    ]
    assert policy.handle(Exited(W1, 143), 1.5) == []
    assert policy.handle(Exited(W0, 143), 2.0) == [Send(PS, signal.SIGTERM)]
    assert policy.wake_at == 1.0 + policy.grace, "the whole takes no longer than was given"
    assert policy.handle(Exited(PS, 143), 2.1) == [Finish(143)]


def test_a_worker_that_was_asked_to_end_leaves_the_others_time_to_save_with_the_servers() -> None:
    policy = begun(PS, W0, W1, grace=7.0)
    assert policy.handle(Exited(W1, 143), 1.0) == [
        Say("worker:1 was asked to end: stopping the job, with 7 s to save"),
        Send(W0, signal.SIGTERM),
    ]
    assert policy.wake_at == 8.0
    assert policy.handle(Exited(W0, 143), 3.0) == [Send(PS, signal.SIGTERM)]
    assert policy.wake_at == 8.0, "the whole takes no longer than was given"
    assert policy.handle(Exited(PS, 143), 3.1) == [Finish(143)]


def test_a_worker_that_was_asked_to_end_and_has_used_up_the_restarts() -> None:
    policy = begun(PS, W0, W1, grace=7.0, max_restarts=1, rule="task")
    assert acts(policy.handle(Exited(W1, 143), 1.0)) == [], "it is started again, and nobody else is asked"
    assert policy.handle(Passed(), 1.5) == [Start(W1, 1)]
    assert acts(policy.handle(Exited(W1, 143), 2.0)) == [Send(W0, signal.SIGTERM)]


def test_without_a_server_that_was_asked_to_end_there_is_nothing_to_wait_for() -> None:
    policy = begun(PS, W0, grace=60.0)
    assert acts(policy.handle(Exited(PS, 143), 1.0)) == [Send(W0, signal.SIGTERM)]
    assert policy.wake_at == 1.0 + rules.STOP_SECONDS
    assert policy.handle(Exited(W0, -15), 1.5) == [Finish(1)]


def test_evaluator_is_waited_for() -> None:
    policy = begun(W0, EVALUATOR)
    assert policy.handle(Exited(W0, 0), 1.0) == []
    assert policy.wake_at is None
    assert policy.handle(Exited(EVALUATOR, 0), 60.0) == [Finish(0)]


def test_task_rule_restarts_the_task_alone_with_backoff() -> None:
    policy = begun(PS, W0, W1, max_restarts=2, rule="task")
    assert acts(policy.handle(Exited(W1, 1), 10.0)) == []
    assert policy.wake_at == 10.0 + rules.FIRST_DELAY
    assert policy.handle(Passed(), 10.5) == [Start(W1, 1)]
    assert acts(policy.handle(Exited(W1, 1), 20.0)) == []
    assert policy.wake_at == 20.0 + 2 * rules.FIRST_DELAY
    assert policy.handle(Passed(), 21.0) == [Start(W1, 2)]
    assert acts(policy.handle(Exited(W1, 1), 30.0)) == [Send(PS, signal.SIGTERM), Send(W0, signal.SIGTERM)]


def test_delays_grow_for_each_task_by_itself_and_only_while_it_is_not_well() -> None:
    policy = begun(W0, W1, max_restarts=100, rule="task")
    now, seen = 0.0, []
    for task, seconds in [(W0, 1), (W0, 1), (W1, 1), (W0, 1), (W0, rules.HEALTHY_SECONDS), (W0, 1), (W1, 1)]:
        now += seconds
        policy.handle(Exited(task, 1), now)
        assert policy.wake_at is not None
        seen.append(policy.wake_at - now)
        now = policy.wake_at
        policy.handle(Passed(), now)
    first = rules.FIRST_DELAY
    assert seen == [first, 2 * first, first, 4 * first, first, 2 * first, first]


def test_delays_do_not_grow_beyond_all_bounds() -> None:
    policy = begun(W0, max_restarts=5000, rule="task")
    now = 0.0
    for _ in range(5000):
        policy.handle(Exited(W0, 1), now)
        assert policy.wake_at is not None
        assert policy.wake_at - now <= rules.LONGEST_DELAY
        now = policy.wake_at
        policy.handle(Passed(), now)


def test_job_rule_starts_a_new_generation_when_the_old_one_is_gone() -> None:
    policy = begun(W0, W1, EVALUATOR, max_restarts=1, rule="job")
    policy.handle(Exited(W0, 0), 5.0)
    assert acts(policy.handle(Exited(W1, -9), 10.0)) == []
    assert policy.handle(Passed(), 10.5) == [Start(W0, 1), Start(W1, 1)]


def test_new_generation_waits_for_stubborn_tasks_of_the_old() -> None:
    policy = begun(W0, W1, max_restarts=1, rule="job")
    assert acts(policy.handle(Exited(W0, 1), 10.0)) == [Send(W1, signal.SIGTERM)]
    assert policy.handle(Passed(), 10.6) == []
    assert policy.wake_at == 10.0 + rules.STOP_SECONDS, "no busy loop while it waits"
    assert policy.handle(Passed(), 11.3) == [Kill(W1)]
    assert policy.handle(Exited(W1, -9), 11.4) == [Start(W0, 1), Start(W1, 1)]


def test_evaluator_is_restarted_alone_under_either_rule() -> None:
    policy = begun(W0, EVALUATOR, max_restarts=1, rule="job")
    assert acts(policy.handle(Exited(EVALUATOR, 1), 10.0)) == []
    assert policy.handle(Passed(), 10.5) == [Start(EVALUATOR, 1)]


@pytest.mark.parametrize(
    ("number", "passed_on", "seconds", "code"),
    [
        (signal.SIGINT, signal.SIGINT, rules.STOP_SECONDS, 130),
        (signal.SIGTERM, signal.SIGTERM, 7.0, 143),
        (signal.SIGHUP, signal.SIGTERM, rules.STOP_SECONDS, 129),
    ],
)
def test_signals(number: signal.Signals, passed_on: signal.Signals, seconds: float, code: int) -> None:
    policy = begun(W0, W1, grace=7.0, max_restarts=5)
    assert policy.handle(Signalled(number), 1.0) == [Send(W0, passed_on), Send(W1, passed_on)]
    assert policy.wake_at == 1.0 + seconds
    assert policy.handle(Exited(W0, 1), 1.1) == [], "no restart, no failure: it was told to stop"
    assert policy.handle(Exited(W1, 0), 1.2) == [Finish(code)]


def test_second_interrupt_kills_at_once() -> None:
    policy = begun(W0, W1)
    policy.handle(Signalled(signal.SIGINT), 1.0)
    assert policy.handle(Signalled(signal.SIGINT), 1.1) == [Kill(W0), Kill(W1)]


def test_interrupt_shortens_a_long_grace() -> None:
    policy = begun(W0, grace=60.0)
    policy.handle(Signalled(signal.SIGTERM), 1.0)
    assert policy.handle(Signalled(signal.SIGINT), 2.0) == [Kill(W0)]


def test_interrupt_during_a_backoff_starts_nothing_more() -> None:
    policy = begun(PS, W0, max_restarts=1, rule="task")
    policy.handle(Exited(W0, 1), 1.0)
    assert acts(policy.handle(Signalled(signal.SIGINT), 1.1)) == [Send(PS, signal.SIGINT)]
    assert policy.handle(Exited(PS, 0), 1.2) == [Finish(130)]


events = st.one_of(
    st.tuples(st.just("exit"), st.integers(0, 3), st.sampled_from([0, 1, 143, -9])),
    st.tuples(st.just("signal"), st.sampled_from([signal.SIGINT, signal.SIGTERM, signal.SIGHUP]), st.just(0)),
    st.tuples(st.just("pass"), st.just(0), st.just(0)),
)


@given(
    st.lists(st.tuples(events, st.floats(0.0, 3.0)), max_size=40),
    st.integers(0, 3),
    st.sampled_from(["task", "job"]),
)
def test_whatever_happens_it_ends_once_and_only_acts_on_what_runs(
    happenings: list[tuple[tuple[str, int, int], float]], restarts: int, rule: rules.RestartRule
) -> None:
    tasks = (PS, W0, W1, EVALUATOR)
    policy = Policy(tasks, frozenset({PS}), restarts, rule)
    running: set[TaskName] = set()
    finished = False
    now = 0.0

    def carry_out(instructions: list[Instruction]) -> None:
        nonlocal finished
        for instruction in instructions:
            assert not finished, "nothing comes after the end"
            match instruction:
                case Start(task, _):
                    assert task not in running
                    running.add(task)
                case Send(task, _) | Kill(task):
                    assert task in running
                case Finish():
                    assert not running
                    finished = True

    def exited(task: TaskName, code: int) -> None:
        running.discard(task)
        carry_out(policy.handle(Exited(task, code), now))

    carry_out(policy.begin(now))
    for (kind, what, code), later in happenings:
        if finished:
            return
        now += later
        event: Event = Passed()
        if kind == "exit":
            if tasks[what] in running:
                exited(tasks[what], code)
            continue
        if kind == "signal":
            event = Signalled(signal.Signals(what))
        carry_out(policy.handle(event, now))
    # From here on every task ends well as soon as it can: the job must come to its end.
    for _ in range(50):
        if finished:
            return
        for task in sorted(running):
            if not finished:
                exited(task, 0)
        if not finished and policy.wake_at is not None:
            now = max(now, policy.wake_at)
            carry_out(policy.handle(Passed(), now))
    pytest.fail("the job did not end")
