"""The rules that spread variables over tasks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.devices import GreedyLoadBalancing, PlacementRule, RoundRobin, assign
from stratagem.errors import ConfigurationError

LOADS = st.lists(st.integers(min_value=0, max_value=1000))
TASKS = st.integers(min_value=1, max_value=9)


def same(load: int) -> int:
    return load


def test_round_robin_takes_turns() -> None:
    assert assign(RoundRobin(), "abcde", 3) == [0, 1, 2, 0, 1]


def test_greedy_goes_by_bytes() -> None:
    variables = [np.zeros(shape, np.float32) for shape in [(784, 500), (500,), (500, 10), (10,), (400, 400)]]
    assert assign(GreedyLoadBalancing(), variables, 2) == [0, 1, 1, 1, 1]


@given(LOADS, TASKS)
def test_equal_loads_are_round_robin(loads: list[int], tasks: int) -> None:
    assert assign(GreedyLoadBalancing(lambda _: 1), loads, tasks) == assign(RoundRobin(), loads, tasks)


@given(LOADS, TASKS)
def test_greedy_is_balanced(loads: list[int], tasks: int) -> None:
    chosen = assign(GreedyLoadBalancing(same), loads, tasks)
    totals = [sum(load for load, task in zip(loads, chosen, strict=True) if task == i) for i in range(tasks)]
    assert max(totals) - min(totals) <= max(loads, default=0)


@pytest.mark.parametrize("rule", [RoundRobin(), GreedyLoadBalancing(same)])
def test_choosers_start_afresh_and_keep_apart(rule: PlacementRule) -> None:
    first, second = rule.chooser(2), rule.chooser(2)
    assert [first(1), first(1), second(1), first(1), second(1)] == [0, 1, 0, 0, 1]
    assert isinstance(rule, PlacementRule)


@pytest.mark.parametrize("tasks", [0, -1, True, "2", 1.5, None])
def test_number_of_tasks_is_checked(tasks: object) -> None:
    for rule in (RoundRobin(), GreedyLoadBalancing()):
        with pytest.raises(ConfigurationError, match=f"num_tasks is {tasks!r}"):
            rule.chooser(tasks)  # type: ignore[arg-type]


@pytest.mark.parametrize("load", [-1, float("nan"), float("inf"), "1", None, True])
def test_loads_are_checked(load: object) -> None:
    with pytest.raises(ConfigurationError, match="load_fn gave"):
        assign(GreedyLoadBalancing(lambda _: load), ["w"], 2)  # type: ignore[arg-type, return-value]


def test_load_fn_is_checked() -> None:
    with pytest.raises(ConfigurationError, match="load_fn is 3"):
        GreedyLoadBalancing(3)  # type: ignore[arg-type]


def test_loads_may_be_numbers_of_numpy() -> None:
    assert assign(GreedyLoadBalancing(np.float32), [3.0, 1.0, 1.0], 2) == [0, 1, 1]  # type: ignore[arg-type]
