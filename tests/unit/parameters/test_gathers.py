"""Workers that show each other something, with some of them coming and going."""

import pytest

from stratagem.errors import StrategyError
from stratagem.parameters.exchanges import Gathers


def test_all_get_what_all_have_brought() -> None:
    gathers = Gathers()
    first = gathers.bring(1, "x", "reduce", "b", {0, 1})
    assert not first.is_complete
    second = gathers.bring(0, "x", "reduce", "a", {0, 1})
    assert second is first
    assert first.is_complete
    assert first.parts == {0: "a", 1: "b"}


def test_a_part_brought_twice_counts_once_also_when_all_have_gone_on() -> None:
    gathers = Gathers()
    first = gathers.bring(0, "x", "reduce", 1, {0, 1})
    assert gathers.bring(0, "x", "reduce", 1, {0, 1}) is first
    gathers.bring(1, "y", "reduce", 2, {0, 1})
    assert gathers.bring(0, "x", "reduce", 1, {0, 1}) is first
    following = gathers.bring(1, "z", "reduce", 4, {0, 1})
    assert following is not first
    assert following.parts == {1: 4}


def test_who_has_left_is_not_waited_for() -> None:
    gathers = Gathers()
    meeting = gathers.bring(0, "x", "reduce", 1, {0, 1})
    gathers.look({0})
    assert meeting.is_complete


def test_workers_that_mean_different_things_are_told() -> None:
    gathers = Gathers()
    gathers.bring(0, "x", "reduce", 1, {0, 1})
    with pytest.raises(StrategyError, match="worker 1 is at 'more data' while worker 0 is at 'reduce'"):
        gathers.bring(1, "x", "more data", 1, {0, 1})
