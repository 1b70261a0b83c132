"""Workers that show each other something, with some of them coming and going."""

import pytest

from stratagem.errors import StrategyError
from stratagem.parameters.gatherings import Gatherings


def test_all_get_what_all_have_brought() -> None:
    gatherings = Gatherings()
    first = gatherings.bring(1, "x", "reduce", "b", {0, 1})
    assert not first.is_complete
    second = gatherings.bring(0, "x", "reduce", "a", {0, 1})
    assert second is first
    assert first.is_complete
    assert first.parts == {0: "a", 1: "b"}


def test_a_part_brought_twice_counts_once_also_when_all_have_gone_on() -> None:
    gatherings = Gatherings()
    first = gatherings.bring(0, "x", "reduce", 1, {0, 1})
    assert gatherings.bring(0, "x", "reduce", 1, {0, 1}) is first
    gatherings.bring(1, "y", "reduce", 2, {0, 1})
    assert gatherings.bring(0, "x", "reduce", 1, {0, 1}) is first
    following = gatherings.bring(1, "z", "reduce", 4, {0, 1})
    assert following is not first
    assert following.parts == {1: 4}


def test_who_has_left_is_not_waited_for() -> None:
    gatherings = Gatherings()
    meeting = gatherings.bring(0, "x", "reduce", 1, {0, 1})
    gatherings.look({0})
    assert meeting.is_complete


def test_workers_that_mean_different_things_are_told() -> None:
    gatherings = Gatherings()
    gatherings.bring(0, "x", "reduce", 1, {0, 1})
    with pytest.raises(StrategyError, match="worker 1 is at 'more data' while worker 0 is at 'reduce'"):
        gatherings.bring(1, "x", "more data", 1, {0, 1})
