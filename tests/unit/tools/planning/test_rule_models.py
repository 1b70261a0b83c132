"""The quick rules decide as the real ones do, on any sequence of pushes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.errors import LaunchError
from stratagem.parameters.rules import (
    APPLIED,
    DROPPED,
    Async,
    BoundedStaleness,
    Push,
    Sync,
    UpdateRule,
    Verdict,
)
from stratagem.tools.planning.rule_models import rule_model


@st.composite
def jobs(draw: Any) -> tuple[UpdateRule, int, list[int]]:
    workers = draw(st.integers(1, 7))
    rule = draw(
        st.one_of(
            st.just(Async()),
            st.integers(1, workers).map(lambda wanted: Sync(wanted, workers)),
            st.just(Sync()),
            st.integers(0, 3).map(BoundedStaleness),
        )
    )
    return rule, workers, draw(st.lists(st.integers(0, 6), max_size=80))


@given(jobs())
def test_they_agree(job: tuple[UpdateRule, int, list[int]]) -> None:
    rule, workers, order = job
    real, quick = rule.machine(workers), rule_model(rule, workers)
    active = set(range(workers))
    base, pushes = dict.fromkeys(active, 0), dict.fromkeys(active, 0)
    computing, held, step = sorted(active), set[int](), 0
    real.changed(step, active)
    for number in order:
        assert computing, "everybody waits for everybody"
        worker = computing.pop(number % len(computing))
        pushes[worker] += 1
        instructions = real.complete(Push(worker, "first", pushes[worker], base[worker], 1), step, active)
        taken = quick.complete(worker, base[worker], step)
        match instructions:
            case []:
                assert taken is not None
                assert not taken
                go_on: set[int] = set()
            case [Verdict(kind=kind)] if kind == DROPPED:
                assert taken is None
                go_on = {worker}
            case [Verdict(kind, applied)] if kind == APPLIED:
                assert taken is not None
                assert sorted(taken) == [push.worker for push in applied]
                step += 1
                held |= set(taken)
                go_on = {each for each in held if not real.waits_for(each, active)}
                held -= go_on
                assert set(quick.released(taken)) == go_on
            case other:
                pytest.fail(f"the real rule also says {other}")
        for each in go_on:
            base[each] = step
        computing = sorted({*computing, *go_on})


def test_several_pushes_of_a_worker_are_not_planned_for() -> None:
    with pytest.raises(LaunchError, match="at most one push of each worker"):
        rule_model(Sync(4, 2), 2)
